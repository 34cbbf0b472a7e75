"""What operators, sensors and triggers ask of Airflow: who runs, for which interval, with which code."""
