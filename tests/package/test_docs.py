"""What README and docs say exists, exists; their examples are taken as they stand."""

from __future__ import annotations

import ast
import dataclasses
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.cli.main import COMMANDS, WITHOUT_CHECKPOINT, build_parser
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.table.stage_table import MODES
from tests.scheduler.documented import blocks

ROOT = Path(__file__).resolve().parents[2]
KNOWN = {command.NAME for command in (*WITHOUT_CHECKPOINT, *COMMANDS)}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_example_is_python(page: Path) -> None:
    for block in blocks(page):
        ast.parse(block)


@pytest.mark.airflow
def test_the_example_dags_parse() -> None:
    names: dict[str, Any] = {}
    exec(blocks(ROOT / "README.md")[0], names)
    assert isinstance(names["orders"], Pipeline)
    from airflow.sdk import DAG, task

    from airflow_provider_microbatch.operators.drain import drain
    from airflow_provider_microbatch.operators.steps import micro_batch_steps

    names |= {"DAG": DAG, "task": task, "drain": drain, "micro_batch_steps": micro_batch_steps}
    drained, steps, decorated = blocks(ROOT / "docs" / "operators.md")
    exec(drained, names)
    exec(steps, names)
    exec(blocks(ROOT / "README.md")[1], names)
    assert callable(names["transform"])
    exec(decorated, names | {"orders": dataclasses.replace(names["orders"], transform=None)})


def test_the_pipeline_of_data_intervals_is_one() -> None:
    names: dict[str, Any] = {"Pipeline": Pipeline, "FileSource": FileSource, "FileSink": FileSink}
    exec(blocks(ROOT / "docs" / "backfill.md")[0], names)
    assert (names["orders"].plan, names["orders"].lookback) == ("interval", 3600)


def test_the_examples_of_tables_are_taken_as_they_stand() -> None:
    for block in blocks(ROOT / "docs" / "tables.md"):
        names: dict[str, Any] = {}
        exec(block, names)
        assert Sink.from_dict(names["sink"].to_dict(), any_server=True) if "sink" in names else names["orders"].hooks
    modes = set(
        re.findall(r"^\| `([a-z_]+)` \| (?:continuous|`)", (ROOT / "docs" / "tables.md").read_text(), re.MULTILINE)
    )
    assert modes == set(MODES)


def test_every_argument_of_the_tables_exists() -> None:
    text = (ROOT / "docs" / "files.md").read_text()
    source, sink = text.split("## FileSink")
    fields = {field.name for kind in (FileSource, FileSink) for field in dataclasses.fields(kind)}
    named = set(re.findall(r"`([a-z]+_[a-z_]+)(?:=[^`]*)?`", source + sink)) - {"batch_id"}
    assert named <= fields
    undescribed = {field.name for field in dataclasses.fields(FileSource) if f"`{field.name}" not in source}
    assert undescribed <= {"path", "format"}


def test_every_command_exists() -> None:
    parser = build_parser()
    commands = [line for page in PAGES for line in re.findall(r"^    microbatch (.*)", page.read_text(), re.MULTILINE)]
    assert {command.split()[0] for command in commands} == KNOWN
    for command in commands:
        parser.parse_args(shlex.split(command, comments=True))


def test_every_command_that_a_message_names_exists() -> None:
    for path in (ROOT / "airflow_provider_microbatch").rglob("*.py"):
        assert set(re.findall(r"`microbatch ([a-z-]+)", path.read_text())) <= KNOWN, path


def test_every_make_target_exists() -> None:
    named = set(re.findall(r"^    make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    asked = subprocess.run(["make", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True)
    assert named <= {line.split()[0] for line in asked.stdout.splitlines() if line.strip()}
