"""What a checkpoint has on record of a pipeline names no code for the replay of its dead letters."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.engines import lookup
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import Code, Handle
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sinks.file import FileSink
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine


def test_files_on_record_do_not_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strange.py").write_text("raise SystemExit\n")
    (tmp_path / "mend.py").write_text("def mend(batch): ...\n")
    (tmp_path / "own.py").write_text("")
    letters = FileSink(str(tmp_path / "letters"), format="json")
    strange = [str(tmp_path / "strange.py")]
    world = World(tmp_path, dead_letters=letters, expect={"id > 0": "dead_letter"}, py_files=strange)
    world.land(1, 2)
    world.run(0, InlineEngine(refuse=lambda row: "dead_letter" if row["id"] == 2 else None))
    travelled: list[Code] = []

    class Noting(InlineEngine):
        def start(self, handle: Handle, job: Job, code: Code) -> None:
            travelled.append(code)
            raise EngineError("the cluster is away")

    monkeypatch.setattr(lookup, "engine_for", lambda wanted: Noting())
    replay = ["--replay", "mend.py:mend", "--base", str(tmp_path), "--py-file", "own.py"]
    assert main(["dead-letters", world.pipeline.checkpoint, *replay]) == 2
    assert [[Path(name).name for name in code.files] for code in travelled] == [["mend.py", "own.py"]]
