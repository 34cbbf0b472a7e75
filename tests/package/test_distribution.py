"""What `pip install airflow-provider-microbatch` brings."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from email import message_from_string
from email.message import Message
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = ("sinks", "sources", "stores")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    (built,) = out.glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_string(wheel.read(name).decode())


def test_every_module_and_the_type_marker_are_in_it(wheel: zipfile.ZipFile) -> None:
    package = ROOT / "airflow_provider_microbatch"
    modules = {str(path.relative_to(ROOT)) for path in package.rglob("*.py")}
    assert modules | {"airflow_provider_microbatch/py.typed"} <= set(wheel.namelist())


def test_nothing_else_is_in_it(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"airflow_provider_microbatch"}


def test_airflow_lists_it_as_a_provider(metadata: Message) -> None:
    assert "Framework :: Apache Airflow :: Provider" in metadata.get_all("Classifier", [])


def test_an_extra_holds_something(metadata: Message) -> None:
    needs = metadata.get_all("Requires-Dist", [])
    for extra in metadata.get_all("Provides-Extra", []):
        assert any(f"extra == '{extra}'" in need.replace('"', "'") for need in needs), extra


@pytest.mark.slow
def test_what_the_code_imports_is_among_its_requirements(metadata: Message) -> None:
    needs = metadata.get_all("Requires-Dist", [])
    declared = {re.match(r"[\w-]+", need)[0] for need in needs if "extra ==" not in need}  # type: ignore[index]
    extras = {re.match(r"[\w-]+", need)[0] for need in needs if "extra ==" in need}  # type: ignore[index]
    # Parts of what they are, in versions that they choose; kubernetes is that of the extra cncf-kubernetes.
    brought = {"asgiref", "botocore", "grpc", "kubernetes", "numpy", "py4j", "requests", "sqlalchemy", "zstandard"}
    owners, provided = packages_distributions(), metadata.get_all("Provides-Extra", [])
    package = ROOT / "airflow_provider_microbatch"
    folders = {path.name for kind in SYSTEMS for path in (package / kind).glob("*/")}
    for path in package.rglob("*.py"):
        # A system's folder, its half in the runtime, and who tries systems of others, alone import what extras bring.
        below = path.relative_to(package).parts
        is_system = below[0] in SYSTEMS and (len(below) > 2 or path.stem == "trial")
        is_system = is_system or (below[0] == "runtime" and path.stem in {*provided, *folders})
        # What a system's source and its sink share, and what two sinks do.
        is_system = is_system or below[0].removesuffix(".py").removesuffix("_catalog") in provided
        is_system = is_system or (below[0] in SYSTEMS and path.stem.partition("_")[0] in provided)
        allowed = declared | extras if is_system else declared
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for top in {name.partition(".")[0] for name in names} - {"airflow_provider_microbatch"}:
                if top not in sys.stdlib_module_names | brought:
                    assert allowed & {owner.lower() for owner in owners[top]}, (path, top)
