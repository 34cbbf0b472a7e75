"""The record of a command that was killed, written by somebody else: the next command does none of it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.checkpoint import TOP
from airflow_provider_microbatch.checkpoint.records import encode_record
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.upkeep.commands.steps import DropStage, step_to_dict
from tests.execution.maintaining import filled
from tests.execution.world import World

OUT: dict[str, dict[str, Any]] = {
    "a sweep out of the checkpoint": {"step": "sweep", "path": "../victim/.a.crc", "target": "repaired/x", "why": ""},
    "a sweep to elsewhere": {"step": "sweep", "path": "link/.a.crc", "target": "../victim/x", "why": ""},
    "a sweep of what is no litter": {"step": "sweep", "path": "metadata", "target": "repaired/x", "why": ""},
    "a sweep through a link": {"step": "sweep", "path": "link/.a.crc", "target": "repaired/x", "why": ""},
    "a write through a link": {"step": "write", "path": "sources/link/evil.py", "text": "import os", "why": ""},
    "a write in a folder that no checkpoint has": {"step": "write", "path": "x/keys", "text": "", "why": ""},
    "a write of the record of a command": {"step": "write", "path": "maintenance/2", "text": "v1", "why": ""},
    "an end in a folder that no checkpoint has": {"step": "end", "path": "x/1.end", "text": "{}", "why": ""},
    "a fence in a folder that no checkpoint has": {"step": "fence", "path": "x/7", "text": "{}", "end": "", "why": ""},
    "a move out of a folder that no checkpoint has": {"step": "move", "path": "x", "target": "offsets", "why": ""},
    "a move to a folder that no checkpoint has": {"step": "move", "path": "sources", "target": "x", "why": ""},
    "a file put away that no checkpoint has": {"step": "put away", "path": "x/a", "target": "repaired/a",
                                               "sha256": "", "why": ""},
    "a late file put away to where no checkpoint has one": {"step": "put away if it came late", "path": "offsets/0",
                                                             "target": "x/a", "why": ""},
    "a write out of the checkpoint": {"step": "write", "path": "../victim/evil.py", "text": "import os", "why": ""},
    "a fence through a link": {"step": "fence", "path": "sources/link/7", "text": "import os", "end": "", "why": ""},
    "a fence of no epoch": {"step": "fence", "path": "attempts/live/0/x", "text": "{}", "end": "", "why": ""},
    "a keep of no source": {"step": "keep", "source": "../victim", "lane": "live", "start": None, "end": "",
                             "why": ""},
    "a keep in no lane": {"step": "keep", "source": "orders", "lane": "../..", "start": None, "end": "0", "why": ""},
    "a keep of no range": {"step": "keep", "source": "orders", "lane": "live", "start": None, "end": 7, "why": ""},
    "a move through a link": {"step": "move", "path": "sources/link", "target": "repaired/link", "why": ""},
    "a move to behind a link": {"step": "move", "path": "offsets", "target": "sources/link", "why": ""},
    "a copy to anywhere": {"step": "copy", "source": "{root}/evil", "target": "{root}/victim", "sources": [],
                           "hand_over": False, "why": ""},
    "a copy of this to anywhere": {"step": "copy", "source": "{root}/checkpoint", "target": "{root}/victim",
                                   "sources": [], "hand_over": False, "why": ""},
    "another table": {"step": "drop output", "key": "live/0", "epoch": 1, "where": "x", "why": "", "sink": {
        "class": "airflow_provider_microbatch.sinks.file:FileSink", "version": 1,
        "arguments": {"path": "{root}/victim"}}},
    "no step": {"step": "sweep"},
    "a number for a path": {"step": "write", "path": 7, "text": "x", "why": ""},
}  # fmt: skip


def _filled(value: Any, root: Path) -> Any:
    if isinstance(value, dict):
        return {key: _filled(one, root) for key, one in value.items()}
    return value.replace("{root}", str(root)) if isinstance(value, str) else value


@pytest.mark.parametrize("case", OUT)
@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]], ids=["done", "dry"])
def test_a_record_of_steps_that_no_command_plans_is_named_and_not_done(
    tmp_path: Path, case: str, dry_run: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path)
    world.land(0)
    world.run(0)
    for folder in ("victim", "evil"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "metadata").write_text("{}")
        (tmp_path / folder / ".a.crc").write_text("x")
    (tmp_path / "checkpoint" / "link").symlink_to(tmp_path / "victim")
    (tmp_path / "checkpoint" / "sources" / "link").symlink_to(tmp_path / "victim")
    (tmp_path / "checkpoint" / "x").mkdir()
    (tmp_path / "checkpoint" / "x" / "a").touch()
    record = tmp_path / "checkpoint" / "maintenance" / "1"
    record.parent.mkdir(exist_ok=True)
    fine = {"step": "write", "path": "repaired/fine", "text": "x", "why": ""}
    steps = [fine, _filled(OUT[case], tmp_path)]
    record.write_bytes(encode_record({"command": "repair", "by": "me", "started_ms": 0, "steps": steps}))
    assert {path.name for path in (tmp_path / "checkpoint").iterdir()} <= TOP | {"link", "x"}
    before = {path for path in tmp_path.rglob("*") if "leases" not in path.parts}
    assert main(["repair", str(tmp_path / "checkpoint"), *dry_run]) != 0
    told = capsys.readouterr().err
    assert f"{record} has steps that are not done from a record" in told
    assert "--give-up` gives its steps up" in told
    assert {path for path in tmp_path.rglob("*") if "leases" not in path.parts} == before


COLUMNS = f"state/0/_stateSchema/default/0_{uuid.UUID(int=7)}"


@pytest.mark.parametrize(
    "what",
    [
        {"changed": 7},
        {"changed": ["offsets/0"]},
        {"changed": {"offsets/0": 7}},
        {"changed": {"metadata": "{}"}},
        {"changed": {"offsets/../../x": "v1"}},
        {"changed": {"offsets": "v1"}},
        {"changed": {"state/0/_metadata/v2/../../x": "v2"}},
        {"again": 7},
        {"again": {COLUMNS: "metadata"}},
        {"again": {"offsets/0": COLUMNS}},
        {"again": {"state/0/_stateSchema/default/../x": COLUMNS}},
    ],
)
def test_a_killed_export_writes_nothing_into_its_copy_but_entries_of_the_logs(
    tmp_path: Path, what: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    world = filled(World(tmp_path), 1)
    location, target = str(world.root / "checkpoint"), str(tmp_path / "copy")
    copy = {"source": location, "target": target, "sources": ["orders"], "hand_over": True, "why": ""}
    record = world.root / "checkpoint" / "maintenance" / "1"
    record.parent.mkdir(exist_ok=True)
    steps = [{"step": "copy", **copy, **what}]
    record.write_bytes(encode_record({"command": "export", "by": "me", "started_ms": 0, "steps": steps}))
    world.expire_leases()
    assert main(["export", location, target]) != 0
    assert f"{record} has steps that are not done from a record" in capsys.readouterr().err
    assert not (tmp_path / "copy").exists()


def test_a_record_drops_no_stage_of_another_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever writes a checkpoint can name any table there, and reads in it whose batches are at work."""
    victim, world = World(tmp_path / "victim"), World(tmp_path / "own")
    victim.land(0)
    attempt = victim.staged()
    filled(world, 1)
    sink = victim.pipeline.sink
    arguments = {**world.pipeline.to_dict()["arguments"], "sink": sink.to_dict()}
    world.checkpoint.definitions.put({**world.pipeline.to_dict(), "arguments": arguments})
    step = DropStage(
        key="live/0",
        epoch=attempt.epoch,
        checkpoint=victim.checkpoint_id,
        sink=sink.to_dict(),
        where=sink.location(),
        why="",
    )
    record = world.root / "checkpoint" / "maintenance" / "1"
    record.parent.mkdir(exist_ok=True)
    steps = [step_to_dict(step)]
    record.write_bytes(encode_record({"command": "repair", "by": "me", "started_ms": 0, "steps": steps}))
    world.expire_leases()
    assert main(["repair", str(world.root / "checkpoint")]) != 0
    assert "and not this one's" in capsys.readouterr().err
    assert victim.stages() == ["live/0 attempt 1"]
