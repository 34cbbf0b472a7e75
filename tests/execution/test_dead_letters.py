"""Rows that a pipeline's tables do not get: each is in a table, among the dead letters, or counted as dropped, once,
whatever dies when."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.cli.table import batch_cells
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError, TransformError
from airflow_provider_microbatch.execution.dead_letters import execution_of, letters_left, replaying
from airflow_provider_microbatch.execution.summary import summarize
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.checks import Checks, Expectation
from airflow_provider_microbatch.runtime.job import Job, Subtask
from airflow_provider_microbatch.runtime.subtasks import Done
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import OpenSinks, Sinks
from airflow_provider_microbatch.sources.file import FileSource
from tests.execution.maintaining import expire, expire_all
from tests.execution.two_tables import dying, is_clean, read
from tests.execution.typed_commands import advised, said
from tests.execution.world import CODE, Killed, World, run_identity
from tests.support.inline_engine import InlineEngine

VERDICTS = (None, "drop", "dead_letter")


class Checked(World):
    """A pipeline that drops some rows, and sends others to the dead letters."""

    def __init__(self, root: Path, **pipeline: Any) -> None:
        letters = FileSink(str(root / "letters"), format="json")
        expect = {"id > 0": "drop", "version = 1": "dead_letter"}
        super().__init__(root, **{"dead_letters": letters, "expect": expect, **pipeline})

    def rows(self, table: str) -> list[int]:
        return sorted(row for rows in read(self.root / table).values() for row, _ in rows)


def refusing(verdicts: dict[int, str | None] | None = None) -> InlineEngine:
    """Of the ids: every third one is dropped, and every third a dead letter, if nothing else is said."""
    return InlineEngine(refuse=lambda row: (verdicts or {}).get(row["id"], VERDICTS[row["id"] % 3]))


class OfLetters(InlineEngine):
    """Makes of dead letters what they are."""

    def _run(self, job: Job, subtask: Subtask | None = None) -> Done:
        groups = [{"paths": part["paths"]} for part in job.sources["dead_letters"].arguments["parts"]]
        read = dataclasses.replace(job.sources["dead_letters"], arguments={"groups": groups})
        return super()._run(dataclasses.replace(job, sources={"dead_letters": read}), subtask)


def places(world: World) -> list[str]:
    """For each batch with dead letters, the folder that its letters are read from."""
    letters = execution_of(replaying(world.pipeline, "mend.py:mend"), world.checkpoint).planner.sources.open(
        "dead_letters"
    )
    end = letters.latest_offset(None)
    assert isinstance(end, str)
    read = letters.read(None, end)
    return [part["base"].rpartition("/")[2] for part in read.arguments["parts"]]


def test_a_batch_whose_rows_are_in_without_its_letters_is_not_set_aside(tmp_path: Path) -> None:
    """Nor is it tried without end: the next attempt makes both."""
    world = Checked(tmp_path, on_failure="set_aside", set_aside_after=1)
    world.land(1, 2, 3)
    away = SinkError("the letters' table is away")
    with mock.patch.object(OpenSinks, "_follow", side_effect=away), pytest.raises(SinkError):
        world.run(0, refusing())
    shutil.rmtree(tmp_path / "letters" / "_staging", ignore_errors=True)
    world.expire_leases()
    broken = InlineEngine(transform=lambda sources: 1 / 0)  # type: ignore[arg-type, return-value]
    for number in (1, 2):
        with pytest.raises(TransformError):
            world.run(number, broken)
    world.run(3, refusing())
    assert world.rows("lake")
    assert is_clean(world)


def typed(world: World, text: str) -> None:
    """Each command that a text names is accepted, in the order in which it names them."""
    ways = advised(text, world)
    assert ways, text
    for words in ways:
        expire_all(world.root)
        status, told = said(words)
        assert status == 0, told


def test_they_are_published_with_the_batch_and_counted(tmp_path: Path) -> None:
    world = Checked(tmp_path)
    world.land(1, 2, 3, 4, 5, 6, 8)
    summary = world.run(0, refusing())
    assert summary is not None
    assert (world.rows("lake"), world.rows("letters")) == ([3, 6], [2, 5, 8])
    assert (summary.rows_out, summary.dead_letters, summary.rows_dropped, summary.rows_by_sink) == (2, 3, 2, {})
    assert summary.label == "batch 0 · 2 rows · 3 dead letters"
    assert batch_cells(summary)[5] == "7 → 2, 3 dead letters, 2 dropped"
    assert is_clean(world)
    assert world.run(1, refusing()) is None


def test_a_replay_replaces_the_dead_letters_too(tmp_path: Path) -> None:
    world = Checked(tmp_path)
    world.land(1, 2, 3)
    world.run(0, refusing())
    world.run(0, refusing({1: None, 2: None}), clear_number=1)
    assert (world.rows("lake"), world.rows("letters")) == ([1, 2, 3], [])
    assert summarize(world.checkpoint, BatchKey("live", 0)).dead_letters == 0
    assert is_clean(world)


def test_letters_are_read_where_their_batch_left_them_wherever_later_ones_go(tmp_path: Path) -> None:
    world = Checked(tmp_path)
    for number in range(2):
        world.land(3 * number + 2)
        world.run(number, refusing())
        world.options["dead_letters"] = FileSink(str(tmp_path / "moved"), format="json")
    assert (world.rows("letters"), world.rows("moved")) == ([2], [5])
    assert places(world) == ["letters", "moved"]


@pytest.mark.parametrize("kind", ["json", "delta"])
def test_or_where_their_table_was_moved_to_as_often_as_it_was_moved(tmp_path: Path, kind: str) -> None:
    def letters(name: str) -> Sink:
        return DeltaSink(str(tmp_path / name)) if kind == "delta" else FileSink(str(tmp_path / name), format="json")

    world, now = Checked(tmp_path), tmp_path
    for number, name in enumerate(("letters", "moved", "moved again", "others")):
        world.options["dead_letters"] = letters(name)
        if name.startswith("moved"):
            shutil.move(now, tmp_path / name)
        now = tmp_path / name
        world.land(3 * number + 2)
        world.run(number, refusing())
    assert places(world) == ["moved again", "moved again", "moved again", "others"]


def test_letters_that_were_moved_are_run_again(tmp_path: Path) -> None:
    world = Checked(tmp_path)
    world.land(1, 2, 3)
    world.run(0, refusing())
    shutil.move(tmp_path / "letters", tmp_path / "moved")
    world.options["dead_letters"] = FileSink(str(tmp_path / "moved"), format="json")
    world.land(5, 6)
    world.run(1, refusing())
    again = execution_of(replaying(world.pipeline, "mend.py:mend"), world.checkpoint, clock_ms=world._tick)
    assert again.run(run=run_identity(10), engine=OfLetters(), code=CODE, transform=None) is not None
    made = (world.lake / "lane=dead-letters" / "batch_id=0").glob("*.json")
    assert sorted(json.loads(line)["id"] for file in made for line in file.read_text().splitlines()) == [2, 5]


def test_a_copy_of_before_a_replay_has_not_the_letters_of_their_batch(tmp_path: Path) -> None:
    world = Checked(tmp_path)
    world.land(2, 5)
    world.run(0, refusing())
    shutil.copytree(tmp_path / "letters", tmp_path / "copy")
    world.run(0, refusing({5: "dead_letter"}), clear_number=1)
    world.options["dead_letters"] = FileSink(str(tmp_path / "copy"), format="json")
    world.land(8)
    world.run(1, refusing())
    assert places(world) == ["letters", "copy"]
    shutil.move(tmp_path / "letters", tmp_path / "away")
    assert places(world) == ["copy"]
    again = execution_of(replaying(world.pipeline, "mend.py:mend"), world.checkpoint)
    (left,) = letters_left(again).values()
    assert re.search(r"of batch live/0 cannot be read: the table \S+letters is away", left)


def test_a_clear_that_would_leave_letters_behind_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    """The table of the letters is none that was moved: they were switched off, or are another's now."""
    world = Checked(tmp_path)
    world.land(1, 2, 3)
    world.run(0, refusing())
    letters, world.options["dead_letters"] = world.options["dead_letters"], None
    world.options["expect"] = {"id > 0": "drop"}
    with pytest.raises(SinkError, match=r"live/0 has its dead letters in \S+letters, and the pipeline has no") as told:
        world.run(0, refusing({2: None}), clear_number=1)
    assert "moved" not in str(told.value)
    assert "old table" not in str(told.value)
    world.options |= {"dead_letters": FileSink(str(tmp_path / "others"), format="json")}
    with pytest.raises(SinkError, match=r"the pipeline sends them to \S+others now.*Name \S+letters as dead_letters"):
        world.run(0, refusing({2: None}), clear_number=1)
    world.options["dead_letters"] = letters
    world.run(0, refusing({1: None, 2: None}), clear_number=1)
    assert (world.rows("lake"), world.rows("letters")) == ([1, 2, 3], [])


def test_or_its_batch_is_made_anew_without_letters(tmp_path: Path) -> None:
    world = Checked(tmp_path)
    world.land(1, 2, 3)
    world.run(0, refusing())
    world.options |= {"dead_letters": None, "expect": {"id > 0": "drop"}}
    with pytest.raises(SinkError) as error:
        world.run(0, clear_number=1)
    typed(world, str(error.value))
    world.run(1, refusing({1: None, 2: None}))
    assert (world.rows("lake"), world.rows("letters")) == ([1, 2, 3], [])
    assert is_clean(world)


def test_letters_that_were_run_again_are_taken_out_first(tmp_path: Path) -> None:
    """The commands are accepted in the order in which they are named."""
    world = Checked(tmp_path)
    for number in range(2):
        world.land(3 * number + 1, 3 * number + 2, 3 * number + 3)
        world.run(number, refusing())
    again = execution_of(replaying(world.pipeline, "mend.py:mend"), world.checkpoint, clock_ms=world._tick)
    assert again.run(run=run_identity(10), engine=OfLetters(), code=CODE, transform=None) is not None
    again_in_table = world.lake / "lane=dead-letters" / "batch_id=0"
    assert again_in_table.is_dir()
    world.options |= {"dead_letters": None, "expect": {"id > 0": "drop"}}
    with pytest.raises(
        SinkError, match=r"were run again: first \S*microbatch rewind \S+ --to -1 .*dead-letters"
    ) as told:
        world.run(0, clear_number=1)
    typed(world, str(told.value))
    assert not again_in_table.exists()
    for number in (11, 12):
        world.run(number, refusing({1: None, 2: None, 4: None, 5: None}))
    assert world.rows("lake") == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_that_was_restored_takes_no_number_that_a_table_has(tmp_path: Path) -> None:
    world = Checked(tmp_path)
    world.land(1, 2, 3)
    assert world.execution.plan(run_identity(0)) is not None
    shutil.copytree(world.root / "checkpoint", world.root / "backup")
    attempt, real = world.staged(), FileSink.publish

    def publish(sink: FileSink, *given: Any) -> object:
        if sink.path.endswith("letters"):
            raise Killed
        return real(sink, *given)

    with mock.patch.object(FileSink, "publish", publish), pytest.raises(Killed):
        world.execution.publish(attempt)
    shutil.rmtree(world.root / "letters" / "_staging")
    shutil.rmtree(world.root / "checkpoint")
    (world.root / "backup").rename(world.root / "checkpoint")
    world.expire_leases()
    world.run(0, refusing(), try_number=2)
    assert (world.rows("lake"), world.rows("letters")) == ([3], [2])
    commit = world.checkpoint.commit_log.get(0)
    assert commit is not None
    assert commit.epoch == 2


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_whatever_dies_each_row_that_landed_is_in_one_place(tmp_path_factory: Any, data: st.DataObject) -> None:
    world = Checked(tmp_path_factory.mktemp("checked"))
    landed: dict[int, str | None] = {}
    for batch in range(data.draw(st.integers(1, 3), label="batches")):
        found = data.draw(st.lists(st.sampled_from(VERDICTS), min_size=1, max_size=5), label="rows")
        ids = {10 * batch + number + 1: verdict for number, verdict in enumerate(found)}
        landed |= ids
        world.land(*ids)
        moment = data.draw(st.integers(1, 40), label="dies at")
        if dying(moment, partial(world.run, batch, refusing(landed))):
            world.expire_leases()
            expire(world)
        for again in (100 + batch, 200 + batch):
            world.run(again, refusing(landed))
    numbers = list(world.checkpoint.commit_log.ids())
    dropped = sum(summarize(world.checkpoint, BatchKey("live", number)).rows_dropped or 0 for number in numbers)
    assert world.rows("lake") == sorted(number for number, verdict in landed.items() if verdict is None)
    assert world.rows("letters") == sorted(number for number, verdict in landed.items() if verdict == "dead_letter")
    assert dropped == list(landed.values()).count("drop")
    assert world.stages() == []
    assert is_clean(world)


LETTERS = FileSink("/data/letters")
SOURCE = FileSource("/data/landing", schema="id long, amount double")


def made(**given: Any) -> Pipeline:
    options: dict[str, Any] = {"sink": FileSink("/data/lake"), "sources": {"orders": SOURCE}, **given}
    return Pipeline("orders", checkpoint="/data/checkpoint", **options)


def test_what_is_written_down_comes_back_and_is_what_the_job_says() -> None:
    pipeline = made(expect={"amount >= 0": "dead_letter", "id > 0": "fail"}, dead_letters=LETTERS, max_dead_letters=0.5)
    assert Pipeline.from_dict(json.loads(json.dumps(pipeline.to_dict()))) == pipeline
    assert pipeline.checks() == Checks(
        expectations=(
            Expectation(condition="amount >= 0", action="dead_letter"),
            Expectation(condition="id > 0", action="fail"),
        ),
        letters="dead_letters",
        max_share=0.5,
    )
    assert made().checks() is None
    assert [location.rsplit("/", 1)[1] for location in map(FileSink.location, pipeline.sink.tables)] == [  # type: ignore[arg-type]
        "lake",
        "letters",
    ]


def test_of_several_sinks_each_has_its_own() -> None:
    sinks = {"orders": FileSink("/data/orders"), "daily": FileSink("/data/daily")}
    pipeline = made(
        sink=None, sinks=sinks, expect={"daily": {"rows > 0": "drop"}}, dead_letters=LETTERS, transform="a.py:f"
    )
    assert (pipeline.sink.names, pipeline.sink.dead_letters) == (("orders", "daily"), LETTERS)
    checks = pipeline.checks()
    assert checks is not None
    assert [one.stage for one in checks.expectations] == ["daily"]


SEVERAL = {"sink": None, "sinks": {"orders": FileSink("/data/orders"), "daily": FileSink("/data/daily")}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"expect": ["amount >= 0"]}, "expect must be a dict"),
        ({"expect": {"amount >= 0": "discard"}}, "'amount >= 0' has 'discard', which is none of 'fail', 'dead_letter'"),
        ({"expect": {"amount >= 0": "dead_letter"}}, "'amount >= 0' sends rows to dead letters. Give the pipeline"),
        ({"expect": {" ": "drop"}}, "is no SQL condition"),
        ({"expect": {"id > 0 -- all": "drop"}}, "holds a comment or a semicolon"),
        ({"expect": {"id IN (1, 2": "drop"}}, "is cut off"),
        ({"expect": {"ts <= now()": "drop"}}, "asks now, which answers otherwise each time"),
        ({"expect": {"rand() > 0.5": "drop"}}, "asks rand"),
        ({**SEVERAL, "expect": {"amount >= 0": "drop"}}, "names 'amount >= 0', which is no sink; it is by sink"),
        ({"dead_letters": "/data/letters"}, "dead_letters is a str, not a Sink"),
        ({"dead_letters": FileSink("/data/lake")}, "sinks sink=… and 'dead_letters' write to one table"),
        ({"dead_letters": FileSink("/data/landing")}, "source 'orders' reads"),
        ({"dead_letters": Sinks(SEVERAL["sinks"])}, "not a sink of one table"),  # type: ignore[arg-type]
        ({"max_dead_letters": 5}, "max_dead_letters goes with dead_letters"),
        ({"dead_letters": LETTERS, "max_dead_letters": 1.5}, "must be a count .* or a share"),
        ({"dead_letters": LETTERS, "max_dead_letters": True}, "must be a count"),
        ({"dead_letters": LETTERS, "split_wise": True}, "do not go with split_wise=True"),
        ({"dead_letters": LETTERS, "sources": {"orders": FileSource("/data/landing")}}, "Give it schema="),
        (
            {
                "dead_letters": LETTERS,
                "sources": {"orders": FileSource("/in", schema="id long", options={"mode": "FAILFAST"})},
            },
            "mode='FAILFAST', which leaves nothing for them",
        ),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written_down(given: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        made(**given)


def test_a_text_may_look_like_anything() -> None:
    assert made(expect={"note <> 'now() -- ;'": "drop"}).checks() is not None
