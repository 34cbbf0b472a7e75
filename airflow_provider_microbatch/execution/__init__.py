"""The state machine of a batch: plan, run, publish, commit. Imports neither Airflow nor Spark."""
