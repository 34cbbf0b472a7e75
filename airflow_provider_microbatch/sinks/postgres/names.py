"""Names of tables and columns beside a table: all lie in its schema, and none begins as a user's name would."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_microbatch.exceptions import DefinitionError, SinkError

LANE, BATCH = "_batch_lane", "_batch_id"
"""Columns that say which batch brought a row."""
BATCHES, STAGES, REPLACED = "microbatch_batches", "microbatch_stages", "microbatch_replaced"
"""Tables of a schema that record which batches its tables have, which stages are loaded, and what was replaced."""
TABLES = "microbatch_tables"
"""A table of a schema that has an id for each of its tables, which a backup has too."""
STAGE, KEPT = "stage", "kept"
"""The kinds of tables for which :meth:`TableName.new` makes names."""
LONGEST = 63
"""Maximum length of a name in bytes: PostgreSQL would silently cut a longer one."""

_PART = r'(?:"((?:[^"]|"")+)"|([^".\s]+))'
_TABLE = re.compile(rf"(?:{_PART}\.)?{_PART}")


def quoted(name: str) -> str:
    """The name, quoted for a statement; a percent sign is doubled, because it would begin a parameter."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def listed(names: Iterable[str], *, of: str = "") -> str:
    """Quoted columns for a statement, with their table's alias if given."""
    return ", ".join(f"{of}.{quoted(name)}" if of else quoted(name) for name in names)


def check_identifier(name: str, *, where: str) -> None:
    """:raises DefinitionError: if PostgreSQL cannot have it as a name."""
    if "\0" in name or len(name.encode()) > LONGEST:
        raise DefinitionError(f"{where}: {name!r:.100} is no name of PostgreSQL: {LONGEST} bytes at most, without NUL.")


@dataclass(frozen=True)
class TableName:
    """A table's schema and name, as in PostgreSQL's catalog."""

    schema: str
    table: str

    @classmethod
    def parse(cls, text: object, *, where: str) -> TableName:
        """Parse ``table`` or ``schema.table``. Case matters, as in PostgreSQL's own quotes; a name with a dot or a
        space must be in quotes.

        :raises DefinitionError: if the text is no name of a table.
        """
        found = _TABLE.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise DefinitionError(
                f"{where}: {text!r:.100} is no table: write 'table', 'schema.table' or '\"a.b\".table'."
            )
        quoted_schema, schema, quoted, plain = found.groups()
        parts = [(one or "").replace('""', '"') or other for one, other in ((quoted_schema, schema), (quoted, plain))]
        name = cls(parts[0] or "public", parts[1])
        for part in (name.schema, name.table):
            check_identifier(part, where=where)
        if name.schema.startswith("pg_") or name.schema == "information_schema":
            raise DefinitionError(f"{where}: the schema {name.schema!r} is PostgreSQL's own.")
        if name.table.startswith("microbatch_"):
            raise DefinitionError(f"{where}: tables whose names begin with 'microbatch_' are this package's own.")
        return name

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def sql(self) -> str:
        """The table's quoted name, for a statement."""
        return f"{quoted(self.schema)}.{quoted(self.table)}"

    @property
    def text(self) -> str:
        """The table's name as a value that PostgreSQL parses (``to_regclass``)."""
        return self.sql.replace("%%", "%")

    def sibling(self, table: str) -> TableName:
        """Another table of the schema."""
        return TableName(self.schema, table)

    def changes(self, scd_type: int = 1) -> TableName:
        """The table that keeps all changes merged into this table. Its name tells of which type the merge is: the
        changes that are kept for one type do not do for the other."""
        kind = "microbatch_changes" if scd_type == 1 else "microbatch_history"
        name = f"{kind}_{self.table}"
        if len(name.encode()) > LONGEST:
            name = f"{kind}_{hashlib.sha256(self.table.encode()).hexdigest()[:40]}"
        return self.sibling(name)

    def made(self, table: str, what: str) -> TableName:
        """A table that :meth:`new` has named, from a record that others could have written.

        :raises SinkError: if the name was not made by :meth:`new`: the table might be anybody's, and is not touched.
        """
        if re.fullmatch(rf"microbatch_{what}_[0-9a-f]{{32}}", table) is None:
            raise SinkError(
                f"a record in schema {self.schema} names {table!r:.100}, which is no table of ours. Remove it."
            )
        return self.sibling(table)

    def new(self, what: str) -> TableName:
        """A new name that no other process uses, so that two processes never wait for each other's table."""
        return self.sibling(f"microbatch_{what}_{uuid.uuid4().hex}")
