"""By what Python functions of a query are told apart."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import cloudpickle

from airflow_provider_microbatch.runtime.python_functions import told

MADE = """
import sys
from pyspark import cloudpickle
from airflow_provider_microbatch.runtime.python_functions import told

class Kept:
    def rows(self, key):
        return {"a", "b", key}

print(told(cloudpickle.dumps((Kept().rows, "long"))))
"""


def of(function: Callable[..., Any]) -> str:
    """As a job's own module has it: it is taken along, and no worker imports it."""
    return told(cloudpickle.dumps((function, "long")))


def written(source: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"__name__": "job"}
    exec(compile(source, f"/bundles/{len(source)}/job.py", "exec"), names)
    found: Callable[..., Any] = names["function"]
    return found


def test_lambdas_are_told_apart_by_their_code_wherever_it_stands() -> None:
    one = "function = lambda kind: kind == 'a'"
    assert of(written(one)) == of(written(f"\n\n# moved\n{one}"))
    assert of(written(one)) != of(written("function = lambda kind: kind == 'b'"))


def test_functions_are_told_apart_by_what_they_close_over() -> None:
    def at_least(least: int) -> Callable[[int], bool]:
        return lambda amount: amount >= least

    assert of(at_least(1)) == of(at_least(1))
    assert of(at_least(1)) != of(at_least(2))


def test_classes_are_told_alike_in_each_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", MADE],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_what_cannot_be_taken_apart_is_told_as_it_is() -> None:
    assert told(b"no pickle") != told(b"no other")


def test_nothing_is_made_of_what_is_taken_along() -> None:
    """What a function takes along may connect to something when it is made."""

    class Connects:
        def __reduce__(self) -> Any:
            return pytest.fail, ("it was made",)

    client = Connects()
    assert of(lambda: client) == of(lambda: client)
