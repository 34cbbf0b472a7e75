"""What travels to the Spark cluster with ``--py-files``. Imports pyspark where it runs, and never Airflow."""
