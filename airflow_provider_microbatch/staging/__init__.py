"""Job status hooks were here; see :mod:`airflow_provider_microbatch.job_status`."""
