"""A database of ``SQL_ASCII``, as old ones are: its texts are texts, whoever reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import psycopg
import pytest

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.sources.jdbc.session import connected
from airflow_provider_microbatch.sources.slot.server import libpq
from airflow_provider_microbatch.stores.sql.postgres import Postgres
from tests.postgres.database import PASSWORD, connect, connection_of

NAME, TEXT = "plain_bytes", "SELECT 'Zürich'::text"


@pytest.fixture(scope="module")
def old(postgres_server: None) -> Iterator[Connection]:
    with connect() as session:
        session.execute(f"CREATE DATABASE {NAME} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        yield replace(connection_of("old"), schema=NAME)
        session.execute(f"DROP DATABASE {NAME} WITH (FORCE)")


def by_jdbc_source(old: Connection) -> object:
    with connected(old) as session:
        return session.execute(TEXT).fetchone()


def by_slot_source(old: Connection) -> object:
    with psycopg.connect(**libpq(old), password=PASSWORD) as session:
        return session.execute(TEXT).fetchone()


def by_checkpoint(old: Connection) -> object:
    engine = Postgres(old).engine()
    with engine.connect() as session:
        found = session.exec_driver_sql(TEXT).one()
    engine.dispose()
    return tuple(found)


@pytest.mark.slow
@pytest.mark.parametrize("read", [by_jdbc_source, by_slot_source, by_checkpoint])
def test_its_texts_are_texts(old: Connection, read: Callable[[Connection], object]) -> None:
    assert read(old) == ("Zürich",)
