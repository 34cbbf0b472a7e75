"""What an installer brings when it has no lock file: versions in which the README's DAG runs. And what the error about
two versions of PySpark tells to run mends an environment, and nothing else in it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from importlib.metadata import files
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from airflow_provider_microbatch.engines.environment import NEWEST
from tests.scheduler.documented import deploy_transforms, documented

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")

AIRFLOW = re.search(r"^apache-airflow==(\S+)", (ROOT / "requirements" / "dev.txt").read_text(), re.MULTILINE)
assert AIRFLOW is not None

IN_AIRFLOWS_CONSTRAINTS = {"pandas": "3.0.6", "pyspark-client": "4.2.0"}
"""Beyond our limits, and in the constraints file of Airflow's main branch of 2026-10-01 (Python 3.11)."""

NOT_A_USERS = ("PIP_", "UV_", "PYTHON", "AIRFLOW")
"""Settings of the tests that would reach into an environment of its own."""


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_A_USERS)}
    return subprocess.run(
        [str(word) for word in command],
        env={**kept, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def asked(*command: str | Path, **settings: str) -> str:
    """What an installer says when it asks the package registry, the same that `make setup` installs from. Without it
    nothing is known of what a user gets, and that is a failure, not a pass."""
    inherited = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_INDEX"))}
    done = run(*command, **{**inherited, **settings})
    if done.returncode != 0:
        pytest.fail(f"NO RESOLUTION: the limits contradict each other, or no package registry answers.\n{done.stderr}")
    return done.stdout + done.stderr


def resolved(*arguments: str | Path, **settings: str) -> str:
    return asked(UV, "pip", *arguments, **settings)


def wheel(folder: Path, name: str, version: str, needs: str = "", files: tuple[str, ...] = ()) -> None:
    """A package of that name and version, with a line of Python for each file."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
        f"Requires-Dist: {needs}\n" if needs else ""
    )
    texts = {
        **dict.fromkeys(files, f"version = {version!r}\n"),
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    texts[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*texts, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in texts.items():
            archive.writestr(path, text)


@pytest.fixture
def wheels(tmp_path: Path) -> Mapping[str, str]:
    """The settings under which both installers know these packages only, and no registry."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in (NEWEST, "4.2.0", "4.3.0"):
        wheel(folder, "pyspark", version, files=("pyspark/__init__.py", "pyspark/shell.py"))
    for version in (NEWEST, "4.2.0"):
        wheel(folder, "pyspark-client", version, needs="pandas>=2.2.0", files=("pyspark/__init__.py",))
    for version in ("2.3.3", "3.0.6"):
        wheel(folder, "pandas", version)
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(folder)}


def new_environment(folder: Path, *, has_pip: bool) -> Path:
    made = run(sys.executable, "-m", "venv", folder) if has_pip else run(UV, "venv", "--quiet", folder)
    assert made.returncode == 0, made.stderr
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with PySpark as `make setup` has built it: a registry has it as source alone, and each installer would
    fetch and build those 400 megabytes anew. Which version is installed, the registry's list says all the same."""
    folder = tmp_path_factory.mktemp("built")
    programs = f"pyspark-{NEWEST}.data/scripts"
    with zipfile.ZipFile(folder / f"pyspark-{NEWEST}-py2.py3-none-any.whl", "w") as archive:
        for path in files("pyspark") or ():
            if path.suffix != ".pyc":
                archive.write(path.locate(), f"{programs}/{path.name}" if ".." in path.parts else path)
    return folder


def by_uv(folder: Path, built: Path) -> str:
    return resolved("compile", "--quiet", "--python-version", "3.11", "--no-annotate", ROOT / "pyproject.toml")


def by_pip(folder: Path, built: Path) -> str:
    """The README's first command, in an empty environment, up to where it would install what it has chosen."""
    python, report = new_environment(folder / "environment", has_pip=True), folder / "report.json"
    choose = ("install", "--dry-run", "--quiet", "--report", report)
    asked(python, "-m", "pip", *choose, ROOT, PIP_FIND_LINKS=str(built))
    chosen = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    return "".join(f"{one['name']}=={one['version']}\n" for one in chosen)


@pytest.mark.parametrize("choose", [by_uv, by_pip])
def test_a_plain_install_brings_one_version_of_pyspark_and_a_pandas_that_it_supports(
    choose: Callable[[Path, Path], str], built: Path, tmp_path: Path
) -> None:
    pins = dict(re.findall(r"^([a-z-]+)==(\S+)", choose(tmp_path, built), re.MULTILINE))
    assert pins["apache-airflow"].startswith("3.3.")
    assert pins["pyspark"] == pins["pyspark-client"] == NEWEST
    assert int(pins["pandas"].partition(".")[0]) < 3


@pytest.mark.parametrize(
    ("has_pip", "full", "client"), [(True, "4.3.0", "4.2.0"), (False, "4.2.0", NEWEST)], ids=["pip", "uv"]
)
def test_the_command_of_the_message_mends_the_environment_and_nothing_else_in_it(
    has_pip: bool, full: str, client: str, wheels: Mapping[str, str], tmp_path: Path
) -> None:
    python = new_environment(tmp_path / "an environment", has_pip=has_pip)
    broken = ("pandas==2.3.3", f"pyspark=={full}", f"pyspark-client=={client}")
    done = run(UV, "pip", "install", "--python", python, *broken, **wheels)
    assert done.returncode == 0, done.stderr
    check = "from airflow_provider_microbatch.engines.environment import check_versions; check_versions()"
    said = run(python, "-c", check, PYTHONPATH=str(ROOT)).stderr.strip()
    assert "EnvironmentMismatchError" in said
    command = shlex.split(said.partition("Mend it with: ")[2])
    assert str(python) in command, "it would mend whichever environment is first on the PATH"
    mended = run(*command, **wheels, PATH=f"{UV.parent}{os.pathsep}{os.environ['PATH']}")
    assert mended.returncode == 0, mended.stderr
    assert run(python, "-c", check, PYTHONPATH=str(ROOT)).returncode == 0
    show = (
        "import pyspark, pyspark.shell; from importlib.metadata import version; "
        "print(pyspark.version, pyspark.shell.version, version('pyspark-client'), version('pandas'))"
    )
    assert run(python, "-c", show).stdout.split() == [NEWEST, NEWEST, NEWEST, "2.3.3"]


def beside_airflow(folder: Path, built: Path) -> Path:
    """The README's other command, in an environment that Airflow's constraints have filled."""
    assert AIRFLOW is not None
    python = new_environment(folder, has_pip=False)
    # Of a registry that lets nothing be kept uv's own cache would grow by as much each time.
    where = {"UV_CACHE_DIR": str(folder.with_name("uv-cache")), "UV_FIND_LINKS": str(built)}
    filled = [f"{name}=={version}" for name, version in IN_AIRFLOWS_CONSTRAINTS.items()]
    resolved("install", "--python", python, *filled, **where)
    said = resolved("install", "--python", python, f"apache-airflow=={AIRFLOW[1]}", ROOT, **where)
    assert f"+ pyspark=={NEWEST}" in said
    assert f"+ pyspark-client=={NEWEST}" in said
    assert re.search(r"\+ pandas==2\.", said)
    return python


def test_the_readmes_dag_runs_in_what_was_installed(built: Path, tmp_path: Path) -> None:
    python = beside_airflow(tmp_path / "environment", built)
    readme = next(documented(tmp_path, api=""))
    dags = tmp_path / "airflow" / "dags"
    (dags / "jobs").mkdir(parents=True)
    (dags / "readme.py").write_text(readme.text)
    deploy_transforms(dags)
    landing = readme.folder / "landing" / "orders"
    landing.mkdir(parents=True)
    (landing / "1.json").write_text('{"id": 1, "ts": "2026-01-01T00:00:00"}\n')
    settings = {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # As in an activated environment: spark-submit is found there, and nowhere else.
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }
    for command in (["db", "migrate"], ["dags", "test", readme.dag_id]):
        done = run(python.parent / "airflow", *command, **settings)
        assert done.returncode == 0, done.stdout + done.stderr
    table = ds.dataset(readme.folder / "lake" / "orders", partitioning="hive").to_table(columns=["id"])
    assert table["id"].to_pylist() == [1], done.stdout + done.stderr
