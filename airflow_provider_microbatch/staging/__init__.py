"""Stage tables, catalogs, job status hooks and the janitor."""
