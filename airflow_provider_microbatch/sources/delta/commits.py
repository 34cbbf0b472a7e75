"""One commit of a table's log, as the protocol defines it: https://github.com/delta-io/delta/blob/master/PROTOCOL.md

delta-rs returns the files of a table at a version, and not the files that one version has added; these stand in the
commit's own file, a line for each action.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.stretch import Unit


@dataclass(frozen=True, kw_only=True)
class File(Unit):
    """A file with rows. The path is as the log spells it: percent-encoded, relative to the table or absolute.

    :param partition: its values of partition columns, as texts; None is null.
    :param is_whole: whether all its rows are in the table: no deletion vector removes any.
    """

    partition: Mapping[str, str | None] = field(default_factory=dict)
    is_whole: bool = True


@dataclass(frozen=True, kw_only=True)
class Commit:
    """The changes of a version.

    :param added: files with new rows, in the order of the log.
    :param removed: files whose rows it has removed.
    :param changes: files of the change feed, which are separate from the others, with their bytes.
    :param schema: schema of the table from here on, as JSON, if the commit contains one.
    :param properties: properties of the table from here on, if the commit contains them.
    :param table: the table's id, if the commit contains one.
    :param operation: its operation, as its writer names it; None if it names none.
    :param words: its operation and its author, for people.
    :param time_ms: its time, milliseconds since the epoch.
    :param digest: digest of its bytes.
    """

    version: int
    added: tuple[File, ...]
    removed: tuple[File, ...]
    changes: tuple[File, ...]
    schema: str | None
    properties: Mapping[str, str] | None
    table: str | None
    operation: str | None
    words: str
    time_ms: int
    digest: str

    @property
    def rows(self) -> tuple[File, ...]:
        """Files by which the change feed tells how rows have changed."""
        return self.changes or (*self.added, *self.removed)


@dataclass(frozen=True)
class Commits:
    """:param root: the table's folder."""

    root: str

    def path(self, version: int) -> Path:
        """Path of a commit's file."""
        return Path(self.root, "_delta_log", f"{version:020}.json")

    def kept(self) -> Iterator[int]:
        """Versions whose commits exist, in order."""
        names = (path.stem for path in Path(self.root, "_delta_log").glob("*.json"))
        yield from sorted(int(name) for name in names if len(name) == 20 and name.isdecimal())

    def digest(self, version: int) -> str | None:
        """Digest of the commit's bytes; None if the commit does not exist."""
        data = self._bytes(version)
        return None if data is None else _digest(data)

    def get(self, version: int) -> Commit | None:
        """Return a commit; None if it does not exist: cleaned up, or not made yet.

        :raises SourceError: if it cannot be read.
        """
        data = self._bytes(version)
        if data is None:
            return None
        try:
            # JSON may contain characters that `str.splitlines` takes for the end of a line, such as in a column's
            # minimum.
            actions = [json.loads(line) for line in data.decode().split("\n") if line.strip()]
            return _commit(version, actions, data, lambda: self.path(version).stat().st_mtime)
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise SourceError(f"{self.path(version)} is no commit of a Delta log: {error!r:.200}") from error

    def _bytes(self, version: int) -> bytes | None:
        try:
            return self.path(version).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SourceError(f"cannot read {self.path(version)}: {error}") from error


def _commit(version: int, actions: list[dict[str, Any]], data: bytes, written: Any) -> Commit:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for action in actions:
        for kind, values in action.items():
            by_kind.setdefault(kind, []).append(values)
    info = next(iter(by_kind.get("commitInfo", ())), {})
    table = next(iter(by_kind.get("metaData", ())), {})
    time_ms = info.get("inCommitTimestamp")
    return Commit(
        version=version,
        added=tuple(_file(one) for one in by_kind.get("add", ()) if one["dataChange"]),
        removed=tuple(_file(one) for one in by_kind.get("remove", ()) if one["dataChange"]),
        changes=tuple(_file(one) for one in by_kind.get("cdc", ())),
        schema=table.get("schemaString"),
        properties=(table.get("configuration") or {}) if table else None,
        table=table.get("id"),
        operation=info.get("operation"),
        words=_words(info),
        time_ms=round(1000 * written()) if time_ms is None else int(time_ms),
        digest=_digest(data),
    )


def _file(values: Mapping[str, Any]) -> File:
    stats = json.loads(values.get("stats") or "{}")
    return File(
        path=values["path"],
        size=int(values.get("size") or 0),
        rows=stats.get("numRecords"),
        # An empty text is null, too, whatever the type of the column is.
        partition={name: value or None for name, value in (values.get("partitionValues") or {}).items()},
        is_whole=values.get("deletionVector") is None,
    )


def _words(info: Mapping[str, Any]) -> str:
    who = info.get("engineInfo") or info.get("clientVersion") or "somebody"
    ours = info.get("microbatch")
    batch = f" of batch {ours['batch']}" if isinstance(ours, Mapping) and "batch" in ours else ""
    return f"{info.get('operation') or 'a commit'}{batch} by {who}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
