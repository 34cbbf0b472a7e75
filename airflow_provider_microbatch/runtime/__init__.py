"""The modules that travel to the Spark cluster with ``--py-files``. They import pyspark where they run, and never
Airflow."""
