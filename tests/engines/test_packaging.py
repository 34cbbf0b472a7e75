"""What travels with a job."""

from __future__ import annotations

import stat
import subprocess
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch.engines import packaging
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.runtime import secrets
from airflow_provider_microbatch.runtime.job import Job, Requirements
from airflow_provider_microbatch.sinks.file import FileSink
from tests.runtime.jobs import make_job


@pytest.fixture
def tag() -> Iterator[str]:
    name = f"microbatch-{uuid.uuid4()}"
    yield name
    packaging.unpack(name)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return make_job(FileSink(str(tmp_path / "lake")), "keep", ["/landing/ü.json"])


def test_everything_lies_in_one_private_folder(tag: str, job: Job, tmp_path: Path) -> None:
    code = tmp_path / "orders.py"
    code.write_text("X = 1\n")
    shipment = packaging.pack(tag=tag, job=job, code_files=[str(code)], conf={"spark.a": "b"}, base=None)
    assert shipment.folder == Path(tempfile.gettempdir(), tag)
    assert stat.S_IMODE(shipment.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(shipment.properties.stat().st_mode) == 0o600
    assert stat.S_IMODE(shipment.job.stat().st_mode) == 0o600
    assert Job.from_json(shipment.job.read_text(encoding="utf-8")) == job
    assert [path.name for path in shipment.py_files] == ["airflow_provider_microbatch_runtime.zip", "orders.py"]
    packaging.unpack(tag)
    assert not shipment.folder.exists()


def test_the_runtime_zip_is_deterministic_and_stands_alone(tag: str, job: Job) -> None:
    first = packaging.pack(tag=tag, job=job, code_files=[], conf={}, base=None).py_files[0]
    content = first.read_bytes()
    names = zipfile.ZipFile(first).namelist()
    assert all(
        name.startswith(("airflow_provider_microbatch/runtime/", "airflow_provider_microbatch/__init__"))
        for name in names
    )
    check = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "import airflow_provider_microbatch.runtime.app as app, airflow_provider_microbatch.runtime.files,"
        "airflow_provider_microbatch.runtime.write; assert '.zip' in app.__file__;"
        "assert not {'airflow', 'pyspark', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", check, str(first)], check=True, timeout=60)
    packaging.unpack(tag)
    assert packaging.pack(tag=tag, job=job, code_files=[], conf={}, base=None).py_files[0].read_bytes() == content


def test_a_file_that_cannot_be_read_leaves_nothing_behind(tag: str, job: Job, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"gone\.py"):
        packaging.pack(tag=tag, job=job, code_files=[str(tmp_path / "gone.py")], conf={}, base=None)
    assert not packaging.folder_of(tag).exists()


def test_settings_that_are_not_utf8_are_named_and_leave_nothing_behind(tag: str, job: Job, tmp_path: Path) -> None:
    base = tmp_path / "spark-defaults.conf"
    base.write_bytes("spark.app.name Läden\n".encode("latin-1"))
    with pytest.raises(EngineError, match=r"spark-defaults\.conf cannot be read: .*utf-8.* Write the file as UTF-8"):
        packaging.pack(tag=tag, job=job, code_files=[], conf={}, base=base)
    assert not packaging.folder_of(tag).exists()
    with pytest.raises(EngineError, match=r"spark-defaults\.conf cannot be read"):
        packaging.property_of(base, "spark.jars")


def test_settings_follow_the_lines_that_were_there(tag: str, job: Job, tmp_path: Path) -> None:
    base = tmp_path / "spark-defaults.conf"
    base.write_text("spark.a  1\nspark.b 2")
    shipment = packaging.pack(tag=tag, job=job, code_files=[], conf={"spark.b": "3"}, base=base)
    assert shipment.properties.read_text() == "spark.a  1\nspark.b 2\nspark.b=3\n"


def load_properties(text: str) -> dict[str, str]:
    """``java.util.Properties.load`` of a line of ``key=value``, for texts without comments and continued lines."""
    plain = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
    loaded = {}
    for line in text.split("\n")[:-1]:
        parts, escaped, split = ["", ""], False, 0
        for sign in line:
            if escaped:
                parts[split] += plain.get(sign, sign)
                escaped = False
            elif sign == "\\":
                escaped = True
            elif split == 0 and sign in "=: ":
                split = 1
            else:
                parts[split] += sign
        loaded[parts[0]] = parts[1]
    return loaded


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=3))
def test_any_setting_comes_back_from_a_properties_file(conf: dict[str, str]) -> None:
    assert load_properties(packaging.render_properties(conf)) == conf


def test_modules_travel_as_they_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "acme_of_the_test" / "inner").mkdir(parents=True)
    there.mkdir()
    (here / "acme_of_the_test" / "__init__.py").write_text("raise RuntimeError('imported where the task runs')")
    (here / "acme_of_the_test" / "inner" / "reader.py").write_text("X = 1\n")
    (here / "acme_of_the_test" / "inner" / "schema.json").write_text("{}")
    (here / "acme_of_the_test" / "inner" / "link.py").symlink_to("/etc/hostname")
    (here / "single_of_the_test.py").write_text("Y = 2\n")
    monkeypatch.syspath_prepend(str(here))
    package, single = packaging.module_files(["acme_of_the_test", "single_of_the_test"], there)
    assert zipfile.ZipFile(package).namelist() == [
        "acme_of_the_test/inner/",
        "acme_of_the_test/__init__.py",
        "acme_of_the_test/inner/reader.py",
        "acme_of_the_test/inner/schema.json",
    ]
    assert single == there / "single_of_the_test.py"


def test_a_folder_without_an_init_travels_as_the_modules_that_are_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the folder above is in Python's path: DAG files put it there, too, and Airflow has it there."""
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "jobs_of_the_test" / "inner").mkdir(parents=True)
    there.mkdir()
    (here / "jobs_of_the_test" / "inner" / "rates.py").write_text("X = 7\n")
    (here / "jobs_of_the_test" / "secrets.env").write_text("not for Spark")
    link = tmp_path / "link"
    link.symlink_to(here)
    for above in (here, here, link):
        monkeypatch.syspath_prepend(str(above))
    (archive,) = packaging.module_files(["jobs_of_the_test"], there)
    ask = f"import sys; sys.path[:0] = [{str(archive)!r}]; from jobs_of_the_test.inner.rates import X; print(X)"
    run = subprocess.run([sys.executable, "-I", "-c", ask], capture_output=True, text=True, check=False)
    assert run.stdout == "7\n", run.stderr
    assert not [name for name in zipfile.ZipFile(archive).namelist() if name.endswith("secrets.env")]


def test_a_folder_without_an_init_that_is_in_several_places_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for above in ("one", "two"):
        (tmp_path / above / "jobs_of_the_test").mkdir(parents=True)
        monkeypatch.syspath_prepend(str(tmp_path / above))
    with pytest.raises(EngineError, match=r"in several folders, \S+/one/jobs_of_the_test and \S+/two/jobs_of_the_test"):
        packaging.module_files(["jobs_of_the_test"], tmp_path)


def test_a_source_in_the_file_of_the_transform_travels_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "rates_of_the_test.py").write_text("X = 1\n")
    (there / "rates_of_the_test.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(str(here))
    assert packaging.module_files(["rates_of_the_test"], there) == []


def test_the_runtime_that_modules_stand_on_can_be_had_alone(tmp_path: Path) -> None:
    archive = packaging.zip_runtime(tmp_path)
    ask = (
        f"import sys; sys.path[:0] = [{str(archive)!r}]; from airflow_provider_microbatch import PollingSource;"
        "print(PollingSource.__module__)"
    )
    run = subprocess.run([sys.executable, "-S", "-I", "-c", ask], capture_output=True, text=True, check=False)
    assert run.stdout == "airflow_provider_microbatch.runtime.polling\n", run.stderr


@pytest.mark.parametrize("name", ["not_installed_anywhere", "../etc", "zlib", "sys", "__main__"])
def test_a_module_that_cannot_travel_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=f"module '{name}'.*cannot travel"):
        packaging.module_files([name], tmp_path)


def test_the_requirements_of_all_readers_and_of_the_writer_are_one(job: Job) -> None:
    (read,) = job.sources.values()
    one, other = Requirements(modules=("a",), jars=("x.jar",)), Requirements(modules=("b", "a"), packages=("g:a:1",))
    made = replace(
        job,
        sources={"one": replace(read, requires=one), "other": replace(read, requires=other)},
        stages={
            "one": replace(job.stage, requires=Requirements(jars=("y.jar",))),
            "other": replace(job.stage, requires=Requirements(jars=("z.jar",))),
        },
    )
    assert made.requires == Requirements(modules=("a", "b"), packages=("g:a:1",), jars=("y.jar", "z.jar", "x.jar"))
    assert Job.from_json(made.to_json()) == made


@pytest.mark.parametrize("own", ["helper.py", "helper.zip"])
def test_a_module_does_not_take_the_place_of_a_file_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "helper.py").write_text("theirs = 1\n")
    (tmp_path / own).write_text("mine = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    with pytest.raises(EngineError, match=f"'helper'.* {own}, have one name"):
        packaging.module_files(["helper"], tmp_path)
    assert (tmp_path / own).read_text() == "mine = 1\n"


def test_a_requirement_that_is_no_tuple_of_names_is_refused() -> None:
    with pytest.raises(ValueError, match="modules='acme'"):
        Requirements(modules="acme")  # type: ignore[arg-type]


def test_a_setting_of_a_properties_file_is_found(tmp_path: Path) -> None:
    file = tmp_path / "spark.conf"
    file.write_text("# spark.jars /no.jar\nspark.jars   /mine.jar\nspark.jars.packages = a:b:1\nspark.jarsx=/x\n")
    assert packaging.property_of(file, "spark.jars") == "/mine.jar"
    assert packaging.property_of(file, "spark.jars.packages") == "a:b:1"
    assert packaging.property_of(file, "spark.files") is None
    assert packaging.property_of(None, "spark.jars") is None


@pytest.mark.parametrize("text", ["spark.jars=", "spark.jars", "spark.jars = /old.jar\nspark.jars   "])
def test_a_setting_without_a_value_has_not_that_of_the_next_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "spark.conf"
    file.write_text(f"{text}\n\nspark.master local\n")
    assert packaging.property_of(file, "spark.jars") is None


def test_secrets_lie_beside_the_job_for_this_user_alone_and_the_driver_removes_them(tag: str, job: Job) -> None:
    handed = {"orders/kafka.sasl.jaas.config": "hush"}
    shipment = packaging.pack(tag=tag, job=job, code_files=[], conf={}, base=None, secrets=handed)
    file = shipment.job.with_name(secrets.FILE)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in shipment.folder.rglob("*") if path.is_file() and b"hush" in path.read_bytes()] == [
        secrets.FILE
    ]
    secrets.take_file(shipment.job)
    assert not file.exists()
    assert secrets.secret("orders/kafka.sasl.jaas.config") == "hush"
    secrets.give({})
    with pytest.raises(ValueError, match="not handed to Spark"):
        secrets.secret("orders/kafka.sasl.jaas.config")
