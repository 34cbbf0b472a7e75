"""Names of a table's neighbourhood: all lie in its schema, and none begins as a user's would."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_microbatch.exceptions import DefinitionError, SinkError

LANE, BATCH = "_batch_lane", "_batch_id"
"""Columns that say of a row which batch brought it."""
BATCHES, STAGES, REPLACED = "microbatch_batches", "microbatch_stages", "microbatch_replaced"
"""Tables of a schema that say what is in its tables, which stages are loaded, and what was put out."""
STAGE, KEPT = "stage", "kept"
"""What the tables are whose names :meth:`TableName.new` makes."""
LONGEST = 63
"""Bytes of a name: PostgreSQL would cut a longer one without a word."""

_PART = r'(?:"((?:[^"]|"")+)"|([^".\s]+))'
_TABLE = re.compile(rf"(?:{_PART}\.)?{_PART}")


def quoted(name: str) -> str:
    """The name in a statement; a percent sign would begin a parameter."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def listed(names: Iterable[str], *, of: str = "") -> str:
    """Columns in a statement, of a table by its alias."""
    return ", ".join(f"{of}.{quoted(name)}" if of else quoted(name) for name in names)


def check_identifier(name: str, *, where: str) -> None:
    """:raises DefinitionError: if PostgreSQL could not have it as a name."""
    if "\0" in name or len(name.encode()) > LONGEST:
        raise DefinitionError(f"{where}: {name!r:.100} is no name of PostgreSQL: {LONGEST} bytes at most, without NUL.")


@dataclass(frozen=True)
class TableName:
    """A table by its schema, each name as PostgreSQL has it in its catalog."""

    schema: str
    table: str

    @classmethod
    def parse(cls, text: object, *, where: str) -> TableName:
        """``table`` or ``schema.table``. Capitals count, as in PostgreSQL's own quotes; a name with a point or a space
        stands in quotes.

        :raises DefinitionError: if it is none.
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
        """The table in a statement."""
        return f"{quoted(self.schema)}.{quoted(self.table)}"

    @property
    def text(self) -> str:
        """The same as a value that PostgreSQL parses (``to_regclass``)."""
        return self.sql.replace("%%", "%")

    def sibling(self, table: str) -> TableName:
        """Another table of the schema."""
        return TableName(self.schema, table)

    def changes(self) -> TableName:
        """Where all changes are kept of a table that they are merged into."""
        name = f"microbatch_changes_{self.table}"
        if len(name.encode()) > LONGEST:
            name = f"microbatch_changes_{hashlib.sha256(self.table.encode()).hexdigest()[:40]}"
        return self.sibling(name)

    def made(self, table: str, what: str) -> TableName:
        """A table that :meth:`new` has named, out of a record that others could have written.

        :raises SinkError: if it is none: it might be anybody's, and is not touched.
        """
        if re.fullmatch(rf"microbatch_{what}_[0-9a-f]{{32}}", table) is None:
            raise SinkError(
                f"a record in schema {self.schema} names {table!r:.100}, which is no table of ours. Remove it."
            )
        return self.sibling(table)

    def new(self, what: str) -> TableName:
        """A table that nobody else has: two processes never wait for each other's."""
        return self.sibling(f"microbatch_{what}_{uuid.uuid4().hex}")
