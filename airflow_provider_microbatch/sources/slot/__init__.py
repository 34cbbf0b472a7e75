"""Changes of a PostgreSQL table, by a logical replication slot: peeked at, and moved on once a batch is committed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import PurePosixPath

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.ddl import parse_columns
from airflow_provider_microbatch.runtime.pg_texts import reader_of
from airflow_provider_microbatch.runtime.slot_rows import ADDED, FAIL, IGNORE, ROW
from airflow_provider_microbatch.sources import OpenSource, Source, SourceContext
from airflow_provider_microbatch.sources.arguments import check_limit, texts

_SLOT = re.compile(r"[a-z0-9_]{1,63}", re.ASCII)


@dataclass(frozen=True)
class SlotSource(Source):
    """Inserts, updates and deletes of a table, in the order of their commits, by whole transactions.

    Frames have the columns of the schema, and ``_op`` (``insert``, ``update``, ``delete``, ``truncate`` or
    ``snapshot``), ``_lsn`` and ``_number``, which order all rows, and ``_committed_at``.

    :param slot: name of a logical slot of the plugin ``pgoutput``, for this pipeline alone.
    :param table: ``table`` or ``schema.table``.
    :param conn_id: a connection of type ``postgres``: host, port, database (``schema``), login, password.
    :param publication: a publication that has the table.
    :param schema: columns of the table, as Spark's DDL. A ``string`` takes every type, as PostgreSQL writes it.
    :param key: columns of its primary key.
    :param max_changes: the largest number of changes in a batch, unless a single transaction has more; None for no
        limit.
    :param snapshot: a folder that Airflow's workers and Spark's executors see as a file system. The source then makes
        the slot, and the first batch has the rows of before it (``_op`` is ``snapshot``), which are copied to the
        folder. None: the slot is there, and the first batch has what it has.
    :param on_truncate: reaction to TRUNCATE: ``fail``, or a ``row`` of its own, with null in the columns of the table.
    :param on_schema_change: reaction to columns that the table has, or had, and the schema has not: ``fail``, or
        ``ignore`` them.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    slot: str
    table: str
    conn_id: str
    _: KW_ONLY
    publication: str
    schema: str
    key: Sequence[str] = ("id",)
    max_changes: int | None = 100_000
    snapshot: str | None = None
    on_truncate: str = FAIL
    on_schema_change: str = FAIL

    def __post_init__(self) -> None:
        if not isinstance(self.slot, str) or not _SLOT.fullmatch(self.slot):
            raise self._wrong("a slot's name has lower case letters, digits and '_', at most 63")
        for name in ("table", "conn_id", "publication", "schema"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip() or "\0" in value:
                raise self._wrong(f"{name} must be a text that is not empty, not {value!r:.200}")
        if not 1 <= len(self.table.split(".")) <= 2 or not all(self.table.split(".")):
            raise self._wrong("table must be 'table' or 'schema.table'")
        object.__setattr__(self, "key", texts("key", self.key, wrong=self._wrong))
        try:
            columns = self.columns()
            for _, type in columns:
                reader_of(type)
        except ValueError as error:
            raise self._wrong(f"schema: {error}") from error
        names = [name for name, _ in columns]
        if len(set(names)) < len(names):
            raise self._wrong(f"schema names a column twice: {', '.join(names)}")
        if taken := [name for name in names if name.lower() in ADDED]:
            raise self._wrong(f"schema: {', '.join(taken)} is added by this package")
        if not self.key or not set(self.key) <= set(names):
            raise self._wrong(f"key must be columns of the schema, not {self.key!r:.200}")
        check_limit("max_changes", self.max_changes, wrong=self._wrong)
        folder = self.snapshot
        if folder is not None and not (isinstance(folder, str) and PurePosixPath(folder).is_absolute()):
            raise self._wrong(f"snapshot must be an absolute path of a folder, not {folder!r:.200}")
        if self.on_truncate not in (FAIL, ROW):
            raise self._wrong(f"on_truncate must be {FAIL!r} or {ROW!r}, not {self.on_truncate!r:.200}")
        if self.on_schema_change not in (FAIL, IGNORE):
            raise self._wrong(f"on_schema_change must be {FAIL!r} or {IGNORE!r}, not {self.on_schema_change!r:.200}")

    def columns(self) -> list[tuple[str, str]]:
        """Names of the table's columns, with their types as Spark's JSON has them.

        :raises ValueError: if the schema is not understood.
        """
        return [(field["name"], str(field["type"])) for field in parse_columns(self.schema)["fields"]]

    def open(self, context: SourceContext) -> OpenSource:
        from airflow_provider_microbatch.sources.slot.open import OpenSlot

        return OpenSlot(self, context)

    def reads_as(self) -> Mapping[str, str | None]:
        return {
            "table": self.table,
            "publication": self.publication,
            "schema": self.schema,
            "key": ", ".join(self.key),
            "on_truncate": self.on_truncate,
            "on_schema_change": self.on_schema_change,
        }

    @property
    def gives_up(self) -> bool:
        return True

    def shares_with(self, other: Source) -> bool:
        return isinstance(other, SlotSource) and (self.slot, self.conn_id) == (other.slot, other.conn_id)

    def location(self) -> str:
        """The connection and the slot."""
        return f"{self.conn_id}:{self.slot}"

    def _wrong(self, text: str) -> DefinitionError:
        return DefinitionError(f"SlotSource({self.slot!r:.100}): {text}.")
