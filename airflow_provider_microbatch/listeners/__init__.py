"""Airflow's events: the events that end an attempt, and what the listener does when they happen."""
