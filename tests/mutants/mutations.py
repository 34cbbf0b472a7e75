"""Mutations of the code, each of which at least one test must catch."""

from __future__ import annotations

from tests.mutants import (
    of_attempts,
    of_batches,
    of_commands,
    of_intervals,
    of_janitor,
    of_jobs,
    of_kafka,
    of_late_ends,
    of_liveness,
    of_logs,
    of_parts,
    of_plain_sources,
    of_postgres,
    of_renames,
    of_security,
    of_several_sinks,
    of_sources,
    of_sql,
    of_subtasks,
    of_tables,
)

MUTATIONS = [
    *of_parts.MUTATIONS,
    *of_attempts.MUTATIONS,
    *of_batches.MUTATIONS,
    *of_commands.MUTATIONS,
    *of_intervals.MUTATIONS,
    *of_janitor.MUTATIONS,
    *of_jobs.MUTATIONS,
    *of_kafka.MUTATIONS,
    *of_late_ends.MUTATIONS,
    *of_several_sinks.MUTATIONS,
    *of_liveness.MUTATIONS,
    *of_logs.MUTATIONS,
    *of_plain_sources.MUTATIONS,
    *of_postgres.MUTATIONS,
    *of_renames.MUTATIONS,
    *of_security.MUTATIONS,
    *of_sources.MUTATIONS,
    *of_subtasks.MUTATIONS,
    *of_sql.MUTATIONS,
    *of_tables.MUTATIONS,
]
