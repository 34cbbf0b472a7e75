"""The address of a checkpoint in a database, as a user writes it: ``sql://conn_id/schema[/prefix]``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores import check_path

_SCHEME = "sql://"
_CONN_ID = re.compile(r"[\w.-]+")


@dataclass(frozen=True, kw_only=True)
class Address:
    """An address in parts.

    :param conn_id: id of the Airflow connection that leads to the database.
    :param schema: schema of the tables; ``main`` for a SQLite file.
    :param prefix: prefix of one checkpoint in these tables; empty for all entries in them.
    """

    conn_id: str
    schema: str
    prefix: str

    @classmethod
    def parse(cls, location: str) -> Self:
        """:raises CheckpointError: if the text is not an address."""
        conn_id, _, rest = location.removeprefix(_SCHEME).partition("/")
        schema, _, prefix = rest.removesuffix("/").partition("/")
        if not location.startswith(_SCHEME) or not _CONN_ID.fullmatch(conn_id) or not schema or "\0" in schema:
            shown = re.sub(r"//.*@", "//***@", location)
            raise CheckpointError(
                f"{shown!r:.200} is no address of a checkpoint in a database. Write sql://CONN_ID/SCHEMA/PREFIX, where "
                "CONN_ID is the id of an Airflow connection of type postgres or sqlite (host, login and password stand "
                "there, not here), SCHEMA the schema that has the tables, PREFIX a name of the pipeline's own."
            )
        return cls(conn_id=conn_id, schema=schema, prefix=check_path(prefix) if prefix else "")

    def __str__(self) -> str:
        return f"{_SCHEME}{self.conn_id}/{self.schema}" + (f"/{self.prefix}" if self.prefix else "")
