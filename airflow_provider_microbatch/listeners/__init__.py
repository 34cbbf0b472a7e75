"""Airflow's events: which of them end an attempt, and who does what when they happen."""
