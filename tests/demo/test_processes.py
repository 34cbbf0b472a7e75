"""Only the task of the chosen attempt is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from demo.processes import java_of, kill_task_of
from tests.demo.tree import Tree


def test_the_java_process_of_an_attempt_is_found_by_its_tag(tmp_path: Path) -> None:
    with Tree(tmp_path, tag="microbatch-1") as one, Tree(tmp_path, tag="microbatch-2") as two:
        processes = [one.task, one.java, two.task, two.java]
        assert java_of(processes, "microbatch-2") == two.java
        assert java_of(processes, "microbatch-3") is None


def test_the_task_is_killed_and_its_spark_runs_on(tmp_path: Path) -> None:
    with Tree(tmp_path, tag="microbatch-1") as tree:
        assert str(tree.task.pid) in kill_task_of(tree.java, [tree.task, tree.java]).how
        assert tree.wait_for_task() == -signal.SIGKILL
        assert tree.java.is_running()
        assert tree.java.status() != psutil.STATUS_ZOMBIE


def test_a_process_that_is_not_the_demos_is_never_killed(tmp_path: Path) -> None:
    with Tree(tmp_path, tag="microbatch-1") as tree:
        with pytest.raises(LookupError, match="no task process"):
            kill_task_of(tree.java, [tree.java])
        assert tree.task.is_running()


def test_a_spark_whose_task_has_gone_is_left_alone(tmp_path: Path) -> None:
    with Tree(tmp_path, tag="microbatch-1") as tree:
        os.kill(tree.task.pid, signal.SIGKILL)
        tree.wait_for_task()
        with pytest.raises(LookupError, match="no task process"):
            kill_task_of(tree.java, [tree.task, tree.java])
