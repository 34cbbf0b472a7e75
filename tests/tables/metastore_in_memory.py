"""A metastore of a few tables in this process: it understands the statements that partitions of a batch take, and finds
rows as Spark does, in the folders that partitions have. For tests that begin a thousand lives."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.sinks.table.statements import Rows, StatementError, Statements

_CREATE = re.compile(
    r"CREATE TABLE (?:IF NOT EXISTS )?(\S+) \((.*)\) USING (\w+) (?:PARTITIONED BY \((.*?)\) )?LOCATION '(.*?)' "
    r"TBLPROPERTIES \((.*)\)"
)
_VIEW = re.compile(r"CREATE TEMPORARY VIEW (\S+) AS .*STRUCT<(.*)>\) AS a\)")
_PROPERTY = re.compile(r"'(microbatch\.\w+)' = '(.*?)'(?=, 'microbatch|$)")
_PARTITION = re.compile(r"PARTITION \((.*?)\)(?: LOCATION 'file://(.*?)')?")
_VALUE = re.compile(r"`?(\w+)`? = '?([^',]*)'?")


@dataclass(frozen=True)
class InMemory(Statements):
    """:param tables: by name, what DESCRIBE tells.
    :param partitions: of all tables, by name and spelled values: their folders.
    """

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    partitions: dict[str, dict[str, Path]] = field(default_factory=dict)
    _views: dict[str, dict[str, Any]] = field(default_factory=dict)

    def handle(self) -> Mapping[str, Any]:
        return {"of": "this process"}

    def end(self, handle: Mapping[str, Any]) -> None:
        """Nothing outlives this process."""

    def run(self, statements: Sequence[str], *, handle: Mapping[str, Any] | None = None) -> list[Rows]:
        return [self._run(statement) for statement in statements]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """What a reader finds."""
        files = [file for folder in self.partitions[name].values() for file in sorted(folder.glob("[!_]*.json"))]
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def rename(self, name: str, new: str) -> None:
        """As a person does, too."""
        self.tables[new], self.partitions[new] = self.tables.pop(name), self.partitions.pop(name)

    def _told(self, name: str, path: str | None = None) -> dict[str, Any]:
        if path is None:
            return {"type": "EXTERNAL", **self.tables[name]}
        if path not in self.partitions[name]:
            raise StatementError("PARTITIONS_NOT_FOUND", f"{name} has no {path}")
        return {"location": f"file://{self.partitions[name][path]}"}

    def _run(self, statement: str) -> Rows:
        # As Spark does it: what is in braces behind a dollar is a variable, and a literal knows the sign by its number.
        statement = re.sub(r"\$\{.*?\}", "of the server", statement).replace("\\u0024", "$")
        if statement.startswith(("SET ", "SELECT typeof")):
            return [{"of": "string"}]
        if created := _CREATE.fullmatch(statement):
            name, columns, provider, by, location, properties = created.groups()
            told = {"provider": provider, "location": location, "table_properties": dict(_PROPERTY.findall(properties))}
            told |= {"partition_columns": re.findall(r"`(\w+)`", by or ""), "columns": _columns(columns)}
            self.tables[name] = told
            self.partitions[name] = {}
            return []
        if view := _VIEW.fullmatch(statement):
            if " DEFAULT " in view[2]:
                raise StatementError("PARSE_SYNTAX_ERROR", "a type has no DEFAULT")
            self._views[view[1]] = {"columns": _columns(view[2])}
            return []
        if statement.startswith("SHOW TABLES"):
            prefix = statement.rpartition("LIKE '")[2].removesuffix("*'")
            bare = (table.strip("`") for table in self.tables)
            return [{"tableName": table} for table in bare if table.startswith(prefix)]
        name = next(word for word in statement.split() if word.startswith("`"))
        if statement.startswith("DROP TABLE"):
            self.tables.pop(name, None)
            return []
        if name in self._views:
            return [{"json_metadata": json.dumps(self._views.pop(name))}]  # it ends with the session
        if name not in self.tables:
            raise StatementError("TABLE_OR_VIEW_NOT_FOUND", f"there is no {name}")
        found = [
            ("/".join(f"{key}={value}" for key, value in _VALUE.findall(one)), at)
            for one, at in _PARTITION.findall(statement)
        ]
        if statement.startswith("DESCRIBE"):
            return [{"json_metadata": json.dumps(self._told(name, *(path for path, _ in found)))}]
        if statement.startswith("SHOW PARTITIONS"):
            return [{"partition": path} for path in self.partitions[name] if path.startswith(found[0][0] + "/")]
        change, have = statement.removeprefix(f"ALTER TABLE {name} "), self.partitions[name]
        if change.startswith("RENAME TO "):
            self.rename(name, change.removeprefix("RENAME TO "))
            return []
        if "SET LOCATION '" in change:
            where = change.rpartition("SET LOCATION '")[2].removesuffix("'")
            if found:
                have[found[0][0]] = Path(where.removeprefix("file://"))
            else:
                self.tables[name]["location"] = where
            return []
        if change.startswith("ADD IF NOT EXISTS"):
            have.update({path: Path(at) for path, at in found if path not in have})
        elif change.startswith("DROP IF EXISTS"):
            for path, _ in found:
                have.pop(path, None)
        else:
            raise AssertionError(statement)
        return []


def _columns(ddl: str) -> list[dict[str, Any]]:
    return [{"name": name, "type": {"name": kind}} for name, kind, *_ in map(str.split, ddl.split(", "))]
