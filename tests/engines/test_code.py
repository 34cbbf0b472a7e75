"""The user's code is checked before planning, and never run for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.engines.code import resolve_code
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.flow import FlowStep, PipelineFlow
from airflow_provider_microbatch.runtime.job import Flow, FlowNode, Transform


def write(folder: Path, name: str, text: str = "def transform(batch):\n    raise SystemExit('imported')\n") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_paths_begin_at_the_bundle(tmp_path: Path) -> None:
    write(tmp_path, "jobs/orders.py")
    write(tmp_path, "jobs/helpers.py", "X = 1\n")
    code, transform = resolve_code(
        "jobs/orders.py:transform",
        base=tmp_path,
        py_files=["jobs/helpers.py"],
        bundle_name="dags",
        bundle_version="abc",
    )
    assert transform == Transform(module="orders", function="transform")
    assert code.files == (str(tmp_path / "jobs/orders.py"), str(tmp_path / "jobs/helpers.py"))
    assert (code.transform, code.bundle_name, code.bundle_version) == ("jobs/orders.py:transform", "dags", "abc")


def test_a_pipeline_may_have_no_code(tmp_path: Path) -> None:
    code, transform = resolve_code(None, base=tmp_path)
    assert transform is None
    assert code.files == ()
    assert code.code_hash is None


def test_the_hash_is_that_of_the_contents(tmp_path: Path) -> None:
    path = write(tmp_path, "orders.py")
    helper = write(tmp_path, "helpers.py", "X = 1\n")

    def found() -> str | None:
        return resolve_code("orders.py:transform", base=tmp_path, py_files=["helpers.py"])[0].code_hash

    before = found()
    path.touch()
    assert found() == before
    helper.write_text("X = 2\n")
    assert found() != before


@pytest.mark.parametrize(
    "text",
    [
        "transform = lambda batch: batch\n",
        "from shop import transform\n",
        "from shop import other as transform\n",
        "from shop import *\n",
        "try:\n    from shop import transform\nexcept ImportError:\n    pass\n",
        "if True:\n    def transform(batch): ...\n",
    ],
)
def test_a_function_may_be_made_in_any_way(tmp_path: Path, text: str) -> None:
    write(tmp_path, "orders.py", text)
    assert resolve_code("orders.py:transform", base=tmp_path)[1] is not None


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("orders.py", "def other(batch): ...\n", "its functions are: other"),
        ("orders.py", "class A:\n    def transform(batch): ...\n", "no function 'transform'"),
        ("orders.py", "def transform(batch:\n", "line 1"),
        ("orders.py", "async def transform(batch): ...\n", "async"),
        ("json.py", None, "hide the module 'json'"),
        ("pyspark.py", None, "hide the module 'pyspark'"),
        ("my-orders.py", None, "no Python name"),
        ("class.py", None, "no Python name"),
    ],
)
def test_what_cannot_work_is_said_before(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    write(tmp_path, name, *([text] if text is not None else []))
    with pytest.raises(DefinitionError, match=said):
        resolve_code(f"{name}:transform", base=tmp_path)


def test_missing_files_and_wrong_kinds_are_named(tmp_path: Path) -> None:
    write(tmp_path, "orders.py")
    write(tmp_path, "data.csv")
    write(tmp_path, "jobs/orders.py")
    with pytest.raises(DefinitionError, match=r"there is no file .*gone\.py"):
        resolve_code("gone.py:transform", base=tmp_path)
    with pytest.raises(DefinitionError, match=r"there is no file .*gone\.zip"):
        resolve_code("orders.py:transform", base=tmp_path, py_files=["gone.zip"])
    with pytest.raises(DefinitionError, match="neither"):
        resolve_code("orders.py:transform", base=tmp_path, py_files=["data.csv"])
    with pytest.raises(DefinitionError, match="one name"):
        resolve_code("orders.py:transform", base=tmp_path, py_files=["jobs/orders.py"])


def flow_of(*steps: FlowStep, output: str) -> PipelineFlow:
    return PipelineFlow(steps, {"": output}, partitions={"orders": 4})


def test_of_a_flow_every_function_is_found_and_each_file_travels_once(tmp_path: Path) -> None:
    write(tmp_path, "jobs/orders.py", "def clean(batch): ...\ndef join(batch): ...\n")
    write(tmp_path, "jobs/people.py", "def keep(batch): ...\n")
    flow = flow_of(
        FlowStep("clean", ["orders"], transform="jobs/orders.py:clean"),
        FlowStep("keep", ["people"], transform="jobs/people.py:keep", partitions=2),
        FlowStep("both", ["clean", "keep"]),
        FlowStep("join", ["both"], transform="jobs/orders.py:join"),
        output="join",
    )
    code, called = resolve_code(flow, base=tmp_path)
    assert code.transform == "jobs/orders.py:clean, jobs/people.py:keep, jobs/orders.py:join"
    assert code.files == (str(tmp_path / "jobs/orders.py"), str(tmp_path / "jobs/people.py"))
    assert called == Flow(
        nodes=(
            FlowNode(name="clean", inputs=("orders",), transform=Transform(module="orders", function="clean")),
            FlowNode(
                name="keep", inputs=("people",), transform=Transform(module="people", function="keep"), partitions=2
            ),
            FlowNode(name="both", inputs=("clean", "keep")),
            FlowNode(name="join", inputs=("both",), transform=Transform(module="orders", function="join")),
        ),
        outputs={"": "join"},
        partitions={"orders": 4},
    )


def test_a_flow_that_hangs_together_otherwise_is_other_code(tmp_path: Path) -> None:
    one, _ = resolve_code(flow_of(FlowStep("both", ["orders", "people"]), output="both"), base=tmp_path)
    other, _ = resolve_code(flow_of(FlowStep("both", ["orders"]), output="both"), base=tmp_path)
    assert one.code_hash
    assert one.code_hash != other.code_hash


def test_a_function_of_a_flow_that_is_missing_is_named(tmp_path: Path) -> None:
    flow = flow_of(FlowStep("clean", ["orders"], transform="jobs/orders.py:clean"), output="clean")
    with pytest.raises(DefinitionError, match=r"jobs/orders\.py:clean"):
        resolve_code(flow, base=tmp_path)
