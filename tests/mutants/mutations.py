"""Mutations of the code, each of which at least one test must catch."""

from __future__ import annotations

from tests.mutants import of_attempts, of_batches, of_parts

MUTATIONS = [*of_parts.MUTATIONS, *of_attempts.MUTATIONS, *of_batches.MUTATIONS]
