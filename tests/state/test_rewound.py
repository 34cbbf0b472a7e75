"""A rewind and forward again makes the very rows that were there: which rows of two streams meet, and which are late,
depends on what was read together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.execution.maintaining import expire_all
from tests.execution.typed_commands import said
from tests.state.stateful import SessionEngine, StatefulWorld

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_joined_row_is_there_again(tmp_path: Path, engine: SessionEngine) -> None:
    world = StatefulWorld(
        tmp_path, "tests.state.transforms:paid", schema="id long, at timestamp", engine=engine, mode="append"
    )
    world.sources = ("orders", "payments")
    number = 0

    def runs() -> None:
        nonlocal number
        while world.run(number) is not None:
            number += 1
        number += 1

    def lands(name: str, **rows: tuple[int, str]) -> None:
        for source, (id, at) in rows.items():
            world.land(name, {"id": id, "at": f"2026-01-01T00:{at}Z"}, source=source)
        runs()

    lands("0", orders=(1, "00:00"), payments=(9, "10:00"))
    lands("1", payments=(8, "11:00"))
    lands("2", payments=(1, "00:30"))
    lands("3", orders=(2, "20:00"), payments=(7, "20:00"))
    before = world.table()
    assert {"id": 1, "paid": True} in [row for rows in before.values() for row in rows]

    expire_all(tmp_path)
    status, text = said(["rewind", world.pipeline.checkpoint, "--to", "0", "--drop-output"])
    assert status == 0, text
    runs()
    assert world.table() == before
