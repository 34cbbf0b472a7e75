"""Processes that are forked of a server, which has imported what they do: a Python that starts and imports anew takes
longer than most of what is told by one that dies. A test session has one such server, so what it imports is here."""

from __future__ import annotations

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "pytest",
        "tests.execution.typed_commands",
        "tests.contract.store_processes",
        "airflow_provider_microbatch.stores.object_store",
        "airflow_provider_microbatch.stores.posix",
        "airflow_provider_microbatch.stores.sql.postgres",
        "airflow_provider_microbatch.stores.sql.sqlite",
        "acme_microbatch.sqlite_store",
        "sqlalchemy.dialects.postgresql.psycopg",
        "sqlalchemy.dialects.sqlite.pysqlite",
    ]
)
