"""A table of PostgreSQL: each batch is one transaction, which brings all of its rows or none.

Spark writes an attempt's rows as text for ``COPY`` into a folder, and never sees the database or its credentials. The
task streams that folder into an UNLOGGED stage table; then one transaction takes the rows and the batch's identity
over. ``docs/postgres.md`` has the whole of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.sinks import Sink, SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.merge import Merge, other_batches
from airflow_provider_microbatch.sinks.postgres.names import BATCH, LANE, TableName, check_identifier

if TYPE_CHECKING:
    from airflow_provider_microbatch.sinks.postgres.open import OpenPostgres

__all__ = ["Merge", "PostgresSink"]

_TYPE = re.compile(r"[A-Za-z_][\w .]*(\(\s*\d+\s*(,\s*\d+\s*)?\))?[A-Za-z ]*(\[\])*", re.ASCII)
"""A type becomes part of a statement, and definitions are read from checkpoints."""
_NUL = ("fail", "remove")


@dataclass(frozen=True)
class PostgresSink(Sink):
    """Publishes each batch into a table of PostgreSQL 12 or newer.

    :param conn_id: the Airflow connection, of type ``postgres``; libpq's settings in its extra (``sslmode``, …) apply.
    :param table: ``table`` or ``schema.table``; case matters. Without ``merge`` it has the columns ``_batch_lane`` and
        ``_batch_id``, which say which batch brought each row.
    :param stages: a folder that Spark and the tasks both see, where attempts write: an absolute path or ``file:`` URL.
    :param columns: name → PostgreSQL type. If given, they are compared with the table before anything runs, and with
        the result before anything is written; otherwise the result's columns are compared with the table before
        anything is loaded.
    :param create: make the table if it is absent, of ``columns`` or of the result's columns.
    :param merge: each row is a change; the table has the newest state of each key, or all of its versions.
    :param nul_characters: how to treat the character NUL, which PostgreSQL's text cannot have: ``fail`` the batch that
        has one, or ``remove`` it.
    :param lock_seconds: how long a statement waits for a lock before it is tried again.
    :param statement_seconds: how long a statement may take, including the load of a stage.
    :param patience_seconds: how long to retry after temporary errors: a server that restarts, a deadlock, a lock.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    keeps_form: ClassVar[bool] = True

    conn_id: str
    table: str
    _: KW_ONLY
    stages: str
    columns: Mapping[str, str] = field(default_factory=dict)
    create: bool = True
    merge: Merge | None = None
    nul_characters: str = "fail"
    lock_seconds: float = 30.0
    statement_seconds: float = 3600.0
    patience_seconds: float = 60.0

    def __post_init__(self) -> None:
        where = f"PostgresSink({self.conn_id!r}, {self.table!r})"
        if not isinstance(self.conn_id, str) or not self.conn_id:
            raise DefinitionError(f"{where}: conn_id must be the id of a connection.")
        TableName.parse(self.table, where=where)
        if not isinstance(self.columns, Mapping):
            raise DefinitionError(f"{where}: columns must be names and types, not {self.columns!r:.100}.")
        for name, type in self.columns.items():
            if not isinstance(name, str) or not name or not isinstance(type, str) or not type.strip():
                raise DefinitionError(f"{where}: columns: {name!r:.100}: {type!r:.100} is no name and type.")
            if _TYPE.fullmatch(type) is None:
                raise DefinitionError(f"{where}: columns: {type!r:.100} is no type, such as numeric(18, 4).")
            check_identifier(name, where=where)
        if self.merge is not None and not isinstance(self.merge, Merge):
            raise DefinitionError(f"{where}: merge must be a Merge, not {type_name(self.merge)}.")
        bounds = () if self.merge is None else self.merge.bounds
        for name in bounds:
            check_identifier(name, where=where)
        added = [name for name in self.columns if name in (LANE, BATCH, *bounds)]
        if added:
            raise DefinitionError(f"{where}: columns: {added[0]!r} is added by this package.")
        if self.merge is not None and bounds and self.columns and self.merge.sequence_by[0] not in self.columns:
            raise DefinitionError(
                f"{where}: columns lacks {self.merge.sequence_by[0]!r}, whose type the bounds of the versions have."
            )
        if self.nul_characters not in _NUL:
            raise DefinitionError(f"{where}: nul_characters {self.nul_characters!r} is none of {', '.join(_NUL)}.")
        for name in ("lock_seconds", "statement_seconds", "patience_seconds"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.001 <= value <= 1_000_000:
                raise DefinitionError(f"{where}: {name} must be a number of seconds, not {value!r:.100}.")
        try:
            _ = self.files.root
        except DefinitionError as error:
            raise DefinitionError(f"{where}: stages: {error}") from error

    @property
    def name(self) -> TableName:
        """The table."""
        return TableName.parse(self.table, where=type(self).__name__)

    @property
    def files(self) -> FileSink:
        """The sink of the attempts' folder; for this table alone, so that two tables may share ``stages``."""
        parts = (self.conn_id, self.name.schema, self.name.table)
        return FileSink("/".join([self.stages.rstrip("/"), *(quote(part, safe="") for part in parts)]), format="json")

    def open(self, context: SinkContext) -> OpenPostgres:
        from airflow_provider_microbatch.sinks.postgres.open import OpenPostgres

        return OpenPostgres(self, context)

    def location(self) -> str:
        return f"postgres:{self.conn_id}/{self.name}"

    @property
    def can_withdraw(self) -> bool:
        return True

    @property
    def remembers_batches(self) -> bool:
        return True

    def would_show(self, location: str) -> bool:
        return self.files.would_show(location)

    def unlike(self, before: Sink) -> str | None:
        others = other_batches(before.merge, self.merge) if isinstance(before, PostgresSink) else None
        return None if others is None else f"the table {self.name} {others}"


def type_name(value: object) -> str:
    """The name of a value's type, for messages."""
    return type(value).__name__
