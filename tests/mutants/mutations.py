"""Mutations of the code, each of which at least one test must catch."""

from __future__ import annotations

from tests.mutants import (
    of_attempts,
    of_batches,
    of_commands,
    of_intervals,
    of_janitor,
    of_late_ends,
    of_liveness,
    of_logs,
    of_parts,
    of_postgres,
    of_renames,
    of_security,
    of_several_sinks,
    of_sources,
    of_tables,
)

MUTATIONS = [
    *of_parts.MUTATIONS,
    *of_attempts.MUTATIONS,
    *of_batches.MUTATIONS,
    *of_commands.MUTATIONS,
    *of_intervals.MUTATIONS,
    *of_janitor.MUTATIONS,
    *of_late_ends.MUTATIONS,
    *of_several_sinks.MUTATIONS,
    *of_liveness.MUTATIONS,
    *of_logs.MUTATIONS,
    *of_postgres.MUTATIONS,
    *of_renames.MUTATIONS,
    *of_security.MUTATIONS,
    *of_sources.MUTATIONS,
    *of_tables.MUTATIONS,
]
