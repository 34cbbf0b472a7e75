"""Statements that change a catalog are on record until somebody knows that they have ended."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.registry import load_stored_class
from airflow_provider_microbatch.sinks.file import STAGING, FileSink
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.metastore import Metastore
from airflow_provider_microbatch.sinks.table.replaced_files import note_replaced
from airflow_provider_microbatch.sinks.table.spark_catalog import SparkCatalog
from airflow_provider_microbatch.sinks.table.statement_steps import StatementSteps
from airflow_provider_microbatch.sinks.table.statements import (
    ConnectStatements,
    Rows,
    StatementError,
    Statements,
    quoted,
)
from tests.sinks.stages import BATCH, EXPECTED

pytestmark = pytest.mark.slow  # a metastore, or processes, of their own


class Killed(BaseException):
    """The process is gone."""


@dataclass(frozen=True)
class Fake(Statements):
    """Sees what is on record while a statement runs."""

    folder: Path
    seen: list[Any]
    raises: BaseException | None = None
    ends: bool = True

    def handle(self) -> Mapping[str, Any]:
        return {"session": f"session-{len(self.seen)}"}

    def run(self, statements: Sequence[str], *, handle: Mapping[str, Any] | None = None) -> list[Rows]:
        if handle is None:
            self.seen.append("asked")
            raise StatementError("TABLE_OR_VIEW_NOT_FOUND", "there is none")
        self.seen.append([json.loads(path.read_text())["session"] for path in self.folder.glob("*.json")])
        if self.raises is not None:
            raise self.raises
        return [[] for _ in statements]

    def end(self, handle: Mapping[str, Any]) -> None:
        self.seen.append(f"ended {handle['session']}")
        if not self.ends:
            raise SinkError("nobody answers")


def test_a_call_that_nobody_can_end_is_on_record_until_it_can_do_nothing(tmp_path: Path) -> None:
    fake = Fake(tmp_path / "steps", [])

    def steps() -> StatementSteps:
        return StatementSteps(fake, fake.folder, disarm=lambda: fake.seen.append("disarmed"))

    def call(raises: BaseException | None) -> bool:
        fake.seen.append(len([*fake.folder.glob("*.json")]))
        if raises is not None:
            raise raises
        return True

    assert steps().run_on_condition(lambda: call(None)) is True
    with pytest.raises(SinkError):
        steps().run_on_condition(lambda: call(SinkError("no answer")))
    assert fake.seen == [1, 1, "disarmed"]
    with pytest.raises(Killed):
        steps().run_on_condition(lambda: call(Killed()))
    steps().end_all()
    steps().end_all()
    assert fake.seen[3:] == [1, "disarmed"]


def test_the_handle_is_on_record_before_the_statement_and_gone_after_it(tmp_path: Path) -> None:
    fake = Fake(tmp_path / "steps", [])
    steps = StatementSteps(fake, fake.folder)
    assert steps.run(["ALTER"]) == [[]]
    steps.end_all()
    assert fake.seen == [["session-0"]]
    assert not fake.folder.exists()


def test_who_comes_after_a_process_that_died_over_a_statement_ends_it_first(tmp_path: Path) -> None:
    fake = Fake(tmp_path / "steps", [], raises=Killed())
    with pytest.raises(Killed):
        StatementSteps(fake, fake.folder).run(["ALTER"])
    after = StatementSteps(fake, fake.folder)
    after.end_all()
    after.end_all()
    assert fake.seen == [["session-0"], "ended session-0"]


@pytest.mark.parametrize("does", ["drop_stage", "publish", "drop_replaced"])
def test_a_table_is_not_looked_at_before_the_statements_of_the_last_lock_holder_have_ended(
    tmp_path: Path, does: str
) -> None:
    fake = Fake(tmp_path / "lake" / "orders" / "_statements", [], raises=Killed())
    sink = TableSink(SparkCatalog(fake, str(tmp_path / "lake")), "orders", schema="id long")
    files = FileSink(str(tmp_path / "lake" / "orders"))
    note_replaced(files, files.root / STAGING / BATCH.checkpoint / "lane=live" / "batch_id=0" / "attempt=1")
    with pytest.raises(Killed):
        StatementSteps(fake, fake.folder).run(["ALTER TABLE orders ADD PARTITION"])
    fake.seen.clear()
    with contextlib.suppress(SinkError, Killed):
        if does == "drop_replaced":
            sink.drop_replaced(BATCH.checkpoint, older_seconds=0)
        elif does == "drop_stage":
            sink.drop_stage(BATCH, 1)
        else:
            sink.publish(EXPECTED, 1)
    assert fake.seen[0] == "ended session-0"


def test_a_statement_whose_answer_is_lost_is_ended_or_stays_on_record(tmp_path: Path) -> None:
    lost = StatementError("", "the server went away")
    fake = Fake(tmp_path / "steps", [], raises=lost)
    with pytest.raises(StatementError, match="went away"):
        StatementSteps(fake, fake.folder).run(["ALTER"])
    assert fake.seen == [["session-0"], "ended session-0"]
    mute = Fake(tmp_path / "others", [], raises=lost, ends=False)
    with pytest.raises(SinkError, match="may still run"):
        StatementSteps(mute, mute.folder).run(["ALTER"])
    (record,) = mute.folder.glob("*.json")
    with pytest.raises(SinkError, match=f"nobody answers.*{record}"):
        StatementSteps(mute, mute.folder).end_all()
    record.write_text("no json")
    with pytest.raises(SinkError, match="cannot be read"):
        StatementSteps(mute, mute.folder).end_all()


def test_a_record_is_not_believed_further_than_it_must_be() -> None:
    statements = ConnectStatements("sc://127.0.0.1:1")
    handle = dict(statements.handle())
    assert handle["session"] != statements.handle()["session"]
    for changed, said in (
        ({"url": "sc://elsewhere:1"}, "elsewhere.*server is sc://127"),
        ({"session": "../x"}, "no session"),
        ({"user": 7}, "no session and user"),
        ({}, "cannot be reached"),
    ):
        with pytest.raises(SinkError, match=said):
            statements.end({**handle, **changed})


def test_only_who_holds_the_lock_changes_a_table(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="lock"):
        Metastore(Fake(tmp_path, []), None).drop("orders")


def test_the_name_of_statements_by_spark_submit_leads_to_what_to_use_instead() -> None:
    with pytest.raises(ImportError, match="ConnectStatements"):
        from airflow_provider_microbatch.engines.submit_statements import SubmitStatements  # noqa: F401
    with pytest.raises(DefinitionError, match="Use ConnectStatements"):
        load_stored_class("airflow_provider_microbatch.engines.submit_statements:SubmitStatements")


def test_a_name_that_spark_would_put_a_variable_into_is_refused() -> None:
    assert quoted("shop", "price in $", "a`b") == "`shop`.`price in $`.`a``b`"
    with pytest.raises(SinkError, match=r"the name 'a\$\{env:HOME\}' cannot be written.*another name"):
        quoted("shop", "a${env:HOME}")
