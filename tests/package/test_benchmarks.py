"""The benchmarks' own bookkeeping; what they measure is not tested, since machines differ."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarks import p6_history
from benchmarks.__main__ import ROWS, main
from benchmarks.harness import Row
from benchmarks.results import last_ratios, regressions, store


def row(name: str, ratio: float, *, what: str = "a / b") -> Row:
    return Row(name=name, what=what, reach=1, ours=[ratio], peer=[1.0])


def test_every_row_has_a_module_that_measures() -> None:
    for module in ROWS.values():
        assert callable(importlib.import_module(f"benchmarks.{module}").measure)


def test_a_row_is_compared_with_its_own_last_figure(tmp_path: Path) -> None:
    first = store([row("P5", 0.8), row("P7", 1.2)], tmp_path)
    first.rename(tmp_path / "20260101T000000.json")
    store([row("P7", 1.0)], tmp_path)
    before = last_ratios(tmp_path)
    assert before == {("P5", "a / b"): 0.8, ("P7", "a / b"): 1.0}
    assert regressions([row("P5", 0.85), row("P7", 1.3)], before) == ["P7: 1.3, was 1 (+30%)"]
    assert regressions([row("P5", 9, what="a / b of another scale"), row("P6", 9)], before) == []


def test_an_unknown_row_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["P99"]) == 2
    assert "P99" in capsys.readouterr().err


def test_the_row_of_a_long_history_runs_when_it_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HISTORY": 80, "BATCHES": 2, "RUNS": 1}.items():
        monkeypatch.setattr(p6_history, name, value)
    made = p6_history.measure()
    assert len(made.ours) == len(made.peer) == 1
    assert made.ratio > 0
