"""Engines that need Airflow's hooks; each implements the Protocol of ``execution``."""
