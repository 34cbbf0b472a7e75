"""Stateful pipelines on real Spark: drivers and tasks are killed, and the table is that of an uninterrupted run."""
