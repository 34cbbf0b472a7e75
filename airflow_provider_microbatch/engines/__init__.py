"""Engines that need Airflow's hooks, behind the Protocol of ``execution``."""
