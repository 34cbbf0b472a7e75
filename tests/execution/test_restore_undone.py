"""Who did not mean to put a Delta table back over a ``rewind`` undoes that: nothing is read again, and nothing lost."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import Any

import pytest

from airflow_provider_microbatch.sinks.delta.table import OpenDeltaTable
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.test_restore_over_a_rewind import Counted, ids, is_refused, lake, rewound, three_batches
from tests.execution.test_restore_over_a_rewind import world as world
from tests.execution.two_tables import is_clean

pytestmark = pytest.mark.slow  # tables, services or worlds that live long

_COMMAND = re.compile(r"python -c '(?:[^']|'\"'\"')*'")


def undone_as_told(told: str) -> None:
    (command,) = set(_COMMAND.findall(told))
    subprocess.run([sys.executable, *shlex.split(command)[1:]], check=True)


def put_back(world: Counted) -> int:
    """The version that the table was put back to."""
    three_batches(world)
    before = lake(world).version()
    rewound(world, 0)
    world.batch(5)
    world.batch(7)
    lake(world).restore(before)
    return before


def test_the_error_has_the_command_that_undoes_it(world: Counted) -> None:
    put_back(world)
    told = is_refused(world, lambda: world.run(50))
    assert "Nothing has to be read again" in told
    undone_as_told(told)
    assert is_clean(world)
    world.batch(9)
    assert ids(world) == list(range(1, 10))
    assert is_clean(world)


def test_so_has_that_of_one_behind_which_no_rewind_goes(world: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    put_back(world)
    monkeypatch.setattr("airflow_provider_microbatch.checkpoint.lane.Lane.can_be_rewound_to", lambda *_: False)
    told = is_refused(world, lambda: world.run(50))
    assert "(retention). Undo that, and nothing is lost" in told
    undone_as_told(told)
    assert is_clean(world)


def test_what_is_pasted_late_undoes_nothing_that_was_committed_meanwhile(world: Counted) -> None:
    put_back(world)
    told = is_refused(world, lambda: world.run(50))
    lake(world).alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})
    version = lake(world).version()
    with pytest.raises(subprocess.CalledProcessError):
        undone_as_told(told)
    assert lake(world).version() == version


def test_nothing_is_undone_over_what_was_committed_since(world: Counted) -> None:
    put_back(world)
    lake(world).alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})
    assert _COMMAND.search(is_refused(world, lambda: world.run(50))) is None


def test_nor_is_a_version_named_that_has_such_rows_too(world: Counted) -> None:
    before = put_back(world)
    lake(world).restore(before - 1)
    told = [finding.message for finding in check_table(world.checkpoint, everything=True).findings]
    assert told
    assert _COMMAND.search(" ".join(told)) is None


def test_who_undoes_it_while_a_plan_is_made_lets_that_go_on(world: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks at the table."""
    put_back(world)
    asked = OpenDeltaTable.came_back

    def undone(table: OpenDeltaTable, *args: Any) -> Any:
        found = asked(table, *args)
        if found:
            lake(world).restore(lake(world).version() - 1)
        return found

    monkeypatch.setattr(OpenDeltaTable, "came_back", undone)
    world.batch(9)
    assert ids(world) == list(range(1, 10))
