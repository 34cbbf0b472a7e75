"""P13: one put into the SQL store, beside the INSERT and the COMMIT that any program would send. On PostgreSQL, with
``fsync`` as a server in earnest has it."""

from __future__ import annotations

import json
import time
from itertools import count

import psycopg

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.stores.location import open_store
from benchmarks.harness import Row, paired
from tests.support.postgres import postgres

RUNS = 9
APPENDS = 200
_DATA = json.dumps({"logOffset": 7, "padding": "x" * 400}).encode()
"""As large as an entry of an offset log."""


def measure() -> Row:
    """The row of the table."""
    row = Row(name="P13", what=f"{APPENDS} puts into the SQL store / INSERT and COMMIT by psycopg", reach=1.5)
    with postgres(settings={"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}) as server:
        login = {"host": "127.0.0.1", "port": server.port, "login": "postgres"}
        connections.find_by(lambda conn_id: Connection(conn_id=conn_id, conn_type="postgres", **login))  # type: ignore[arg-type]
        store, ids = open_store("sql://bench/bench/orders"), count()
        assert store.put_if_absent("metadata", b"{}")
        with psycopg.connect(host="127.0.0.1", port=server.port, user="postgres") as session:
            session.execute("CREATE TABLE bare (key bytea PRIMARY KEY, data bytea NOT NULL)")
            session.commit()

            def ours() -> float:
                started = time.perf_counter()
                for number in [next(ids) for _ in range(APPENDS)]:
                    assert store.put_if_absent(f"offsets/{number}", _DATA)
                return time.perf_counter() - started

            def peer() -> float:
                started = time.perf_counter()
                for number in [next(ids) for _ in range(APPENDS)]:
                    session.execute("INSERT INTO bare VALUES (%s, %s)", (f"offsets/{number}".encode(), _DATA))
                    session.commit()
                return time.perf_counter() - started

            return paired(row, ours=ours, peer=peer, runs=RUNS)
