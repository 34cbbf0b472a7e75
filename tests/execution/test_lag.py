"""How much lies behind a batch: what its summary tells, and people see."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from acme_microbatch.counter import CounterSource, OpenCounter

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.execution.opened_sources import MOST_SPLITS
from airflow_provider_microbatch.execution.summary import summarize
from airflow_provider_microbatch.sources import Figures, OpenSource, SourceContext
from tests.execution.world import KEY, World


class Counted(World):
    """A pipeline that counts, two numbers a batch."""

    def __init__(self, root: Path, *, counter: type[CounterSource] = CounterSource) -> None:
        super().__init__(root)
        self.sources = {"numbers": counter(str(root / "head"), max_rows=2)}  # type: ignore[dict-item]
        (root / "head").write_text("5")


class OpenSilent(OpenCounter):
    def lag(self, position: str | None) -> Figures:
        raise SourceError("source 'numbers': the server does not answer")


class Silent(CounterSource):
    """Cannot be asked when a batch is committed."""

    def open(self, context: SourceContext) -> OpenSource:
        return OpenSilent(self, context)  # type: ignore[return-value]


class OpenParted(OpenCounter):
    def lag_by_split(self, position: str | None) -> Mapping[str, int]:
        return {f"part-{number}": number for number in range(3 * MOST_SPLITS)}


class Parted(CounterSource):
    """Has more splits than anybody looks at."""

    def open(self, context: SourceContext) -> OpenSource:
        return OpenParted(self, context)  # type: ignore[return-value]


def test_a_batch_tells_what_lay_behind_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = Counted(tmp_path)
    world.run(0)
    assert summarize(world.checkpoint, KEY).to_dict()["lag"] == {"numbers": {"rows": 3}}
    world.run(1)
    assert main(["log", world.pipeline.checkpoint]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "lag after batch live/1: numbers 1 rows"
    assert main(["show", world.pipeline.checkpoint, "0"]) == 0
    assert re.search(r"^  lag +numbers 3 rows$", capsys.readouterr().out, re.MULTILINE)
    assert main(["show", world.pipeline.checkpoint, "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lag"] == {"numbers": {"rows": 1}}


def test_a_source_that_cannot_be_asked_fails_no_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = Counted(tmp_path, counter=Silent)
    with caplog.at_level("INFO"):
        world.run(0)
    summary: Any = summarize(world.checkpoint, KEY)
    assert (summary.state, summary.lag, summary.lag_by_split) == ("committed", {}, {})
    assert "does not answer" in caplog.text
    assert world.table() == {0: [1, 2]}


def test_of_many_splits_those_that_are_farthest_behind_are_named(tmp_path: Path) -> None:
    world = Counted(tmp_path, counter=Parted)
    world.run(0)
    told = summarize(world.checkpoint, KEY).lag_by_split["numbers"]
    assert len(told) == MOST_SPLITS
    assert min(told.values()) == 2 * MOST_SPLITS
    assert next(iter(told)) == f"part-{3 * MOST_SPLITS - 1}"
