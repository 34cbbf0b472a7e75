"""A table whose batches have partitions, and a process that dies at each step of what it does to a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.sinks import file as file_sink
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.metastore import Metastore
from airflow_provider_microbatch.sinks.table.spark_catalog import SparkCatalog
from airflow_provider_microbatch.sinks.table.statement_steps import StatementSteps
from airflow_provider_microbatch.sinks.table.statements import Statements
from tests.sinks.stages import EXPECTED, KEY
from tests.tables.stages import write_partitions

SCHEMA = "id long, epoch long, of string"


class Killed(BaseException):
    """The process is gone."""


def sink_in(folder: Path, statements: Statements, name: str) -> TableSink:
    catalog = SparkCatalog(statements, str(folder / "lake"))
    return TableSink(catalog, name, format="json", schema=SCHEMA, partition_by=("of",))


class Steps:
    """Every change of the file system or the metastore that readers could see, and the end of the process at one."""

    def __init__(self, patch: pytest.MonkeyPatch, *, dies_at: int, after: Callable[[], None]) -> None:
        self.number = 0
        self._dies_at, self._after = dies_at, after
        for where, what in ((StatementSteps, "run"), (file_sink, "rename_new"), (file_sink, "exchange")):
            patch.setattr(where, what, self._step(getattr(where, what)))

    def _step(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any) -> Any:
            if self.number == self._dies_at:
                raise Killed
            self.number += 1
            answer = real(*given)
            self._after()
            return answer

        return step


@contextmanager
def dying(*, at: int, after: Callable[[], None]) -> Iterator[Steps]:
    with pytest.MonkeyPatch.context() as patch:
        yield Steps(patch, dies_at=at, after=after)


def die_unseen(sink: TableSink) -> None:
    """Attempt 1 dies when its folder is in its place, and the metastore does not name it."""
    with dying(at=1, after=lambda: None), pytest.raises(Killed):
        sink.publish(EXPECTED, 1)


@dataclass(frozen=True)
class Life:
    """A table of its own, and the attempts whose rows a reader of it finds."""

    sink: TableSink
    epochs: Callable[[], list[int]]


def of_epochs(*epochs: int) -> list[int]:
    """What readers find of a batch of these attempts, each with two rows in its own partition, and two in another."""
    return [epoch for epoch in epochs for _ in range(4)]


def dies(one: Life, doing: str, *, at: int) -> bool:
    """Whether the process dies at so many steps of what it does. What it did is done again then.

    :param doing: publish, replace, withdraw, publish behind a withdrawal, or publish behind an unseen attempt.
    """
    before, then = {"replace": (of_epochs(1), 2), "withdraw": (of_epochs(1), None)}.get(doing, ([], 2))

    def do() -> None:
        if doing == "withdraw":
            one.sink.withdraw(EXPECTED, 1)
        else:
            (one.sink.replace if doing == "replace" else one.sink.publish)(EXPECTED, then or 0)

    def check() -> None:
        assert one.epochs() in (before, of_epochs(*[then] if then else []))

    for epoch in {1, then or 1}:
        write_partitions(one.sink, epoch, rows=2, below=(f"of={epoch}", "of=each"))
    if doing == "publish behind an unseen attempt":
        die_unseen(one.sink)
    elif doing != "publish":
        one.sink.publish(EXPECTED, 1)
    if doing == "publish behind a withdrawal":
        with dying(at=1, after=check), pytest.raises(Killed):
            one.sink.withdraw(EXPECTED, 1)
    with dying(at=at, after=check) as steps, suppress(Killed):
        do()
    check()
    found = one.sink.contains(EXPECTED)
    assert one.epochs() == of_epochs(*[found.epoch] if found else []), "what is in is what readers find"
    do()
    assert one.epochs() == of_epochs(*[then] if then else [])
    catalog = one.sink.catalog
    assert isinstance(catalog, SparkCatalog)
    named = Metastore(catalog.statements, one.sink.as_table.namespace).partitions(
        one.sink.as_table.base_name, KEY, ["of"]
    )
    assert named == ({(("of", str(then)),), (("of", "each"),)} if then else set())
    left = one.sink.catalog.files(one.sink.as_table).root.glob(f"_staging/*/*/*/attempt={then}")
    assert not list(left), "the janitor keeps and removes what was replaced, and finds no stage of a committed attempt"
    return steps.number == at
