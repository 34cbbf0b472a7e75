"""What operators, sensors and triggers ask of Airflow: the identity of the run, its data interval and its code."""
