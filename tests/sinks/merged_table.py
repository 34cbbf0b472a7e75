"""A table of files into which the tests' changes are merged, whoever keeps its log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks import Manifest, OpenSink
from airflow_provider_microbatch.sinks.merged.newest import FolderNewest, NewestRecords
from tests.sinks.changes import VERSIONED, Change, Row
from tests.sinks.delta_stages import write_rows
from tests.sinks.stages import batch_of, expect

COLUMNS = {
    "op": "string",
    "id": "long",
    "shop": "string",
    "ts": "long",
    "seq": "integer",
    "note": "string",
    "_deleted": "boolean",
}


@dataclass(frozen=True)
class MergedInFiles(ABC):
    """:param given: what the sink has beside its merge, or another one."""

    name: ClassVar[str] = "my customers"
    """That of its folder in the tests."""

    root: Path
    given: dict[str, Any] = field(default_factory=dict)

    log: ClassVar[type]
    """The class whose method ``commit`` makes what is published count."""

    examples: ClassVar[int]
    """So many histories a run can afford."""

    @cached_property
    @abstractmethod
    def sink(self) -> OpenSink: ...

    @abstractmethod
    def of_rows(self) -> OpenSink:
        """The same table by a sink of rows."""

    @abstractmethod
    def read(self) -> Any:
        """What a reader finds, as an Arrow table."""

    @abstractmethod
    def files(self) -> set[str]:
        """The files that a reader looks at."""

    @abstractmethod
    def version(self) -> int:
        """The number of the last commit."""

    @abstractmethod
    def tidy(self) -> None:
        """As another writer does: rows into one file, and away with what no reader needs any more."""

    @abstractmethod
    def append(self, *rows: dict[str, Any]) -> None:
        """As another writer does; also where there is no table yet."""

    @abstractmethod
    def change_by_hand(self) -> None:
        """As another writer does: the note of 1 becomes 'by hand', and 2 goes."""

    def again(self, **given: Any) -> Self:
        """The table, as another process opens it."""
        return type(self)(self.root, given or self.given)

    def write(self, key: BatchKey, epoch: int, changes: Sequence[Change]) -> None:
        rows = [row_of(change) for change in changes]
        write_rows(self.sink, epoch, [rows[::2], rows[1::2]], COLUMNS, batch=batch_of(key))

    def publish(self, id: int, *changes: Change, epoch: int = 1) -> Manifest:
        self.write(BatchKey("live", id), epoch, changes)
        return self.sink.publish(expect(BatchKey("live", id)), epoch)

    def replace(self, id: int, *changes: Change, epoch: int = 2) -> Manifest:
        self.write(BatchKey("live", id), epoch, changes)
        return self.sink.replace(expect(BatchKey("live", id)), epoch)

    def withdraw(self, id: int, *, epoch: int = 1) -> bool:
        return self.sink.withdraw(expect(BatchKey("live", id)), epoch)

    def rows(self) -> list[Row]:
        found, names = self.read(), ["id", "shop", "ts", "seq", "note"]
        if VERSIONED.valid_from in found.column_names:
            names = ["id", "shop", "note", *VERSIONED.bounds]
            found = found.sort_by([(name, "ascending") for name in ("id", "shop", VERSIONED.valid_from)])
            return [tuple(row[name] for name in names) for row in found.to_pylist()]
        return sorted(tuple(row[name] for name in names) for row in found.to_pylist())

    @property
    def newest(self) -> NewestRecords:
        return FolderNewest(self.root)

    def newest_files(self) -> set[str]:
        return {file.rpartition("/")[2] for file in self.stored("_microbatch/newest")}

    def batches_with_changes(self) -> list[str]:
        """Lane and id of each attempt whose changes are there."""
        attempts = {tuple(file.split("/")[2:5]) for file in self.stored("_microbatch/changes")}
        return sorted("/".join(found[:2]) for found in attempts)

    def stored(self, below: str) -> list[str]:
        """The files below a folder of the table, relative to the table's."""
        found = [path.relative_to(self.root).as_posix() for path in (self.root / below).rglob("*") if path.is_file()]
        return sorted(found)

    def get(self, file: str) -> bytes:
        return (self.root / file).read_bytes()

    def put(self, file: str, data: bytes) -> None:
        (self.root / file).write_bytes(data)

    def remove(self, file: str) -> None:
        (self.root / file).unlink()


def row_of(change: Change) -> dict[str, Any]:
    return {
        "op": "D" if change.deleted else "U",
        "id": change.id,
        "shop": change.shop,
        "ts": change.ts,
        "seq": change.seq,
        "note": change.note,
        "_deleted": change.deleted,
    }


def rows_of_others(*rows: dict[str, Any]) -> Any:
    """As another writer brings them, as an Arrow table."""
    import pyarrow as pa

    kinds = {"id": pa.int64(), "shop": pa.string(), "ts": pa.int64(), "seq": pa.int32(), "note": pa.string()}
    return pa.Table.from_pylist([{"shop": "a", "seq": 1, **row} for row in rows], schema=pa.schema(kinds))
