"""What is wrong with this machine is said in one line, before anything is launched."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from airflow_provider_microbatch.engines.environment import (
    NEWEST,
    check_java,
    check_versions,
    launch_environment,
    spark_defaults,
)
from airflow_provider_microbatch.exceptions import EngineError, EnvironmentMismatchError


def program(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def installed(folder: Path, **versions: str) -> str:
    for name, version in versions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    return str(folder)


def test_two_pysparks_in_one_folder_are_named_with_the_command_that_mends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [installed(tmp_path, pyspark="4.3.0", pyspark_client="4.2.0"), *sys.path])
    loaded = set(sys.modules)
    with pytest.raises(EnvironmentMismatchError) as raised:
        check_versions()
    assert str(raised.value).endswith(f"--no-deps pyspark=={NEWEST} pyspark-client=={NEWEST}")
    assert not {name for name in set(sys.modules) - loaded if name.startswith("pyspark")}


@pytest.mark.parametrize(
    "versions", [{"pyspark": "4.1.3", "pyspark_client": "4.1.3"}, {"pyspark": "4.3.0"}, {"pyspark_client": "4.2.0"}, {}]
)
def test_environments_that_agree_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]
) -> None:
    monkeypatch.setattr(sys, "path", [installed(tmp_path, **versions)])
    check_versions()


def test_missing_java_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="apt-get install openjdk-17"):
        check_java({"PATH": str(tmp_path)})
    with pytest.raises(EngineError, match="JAVA_HOME"):
        check_java({"PATH": os.defpath, "JAVA_HOME": str(tmp_path)})
    program(tmp_path / "bin", "java")
    check_java({"PATH": "", "JAVA_HOME": str(tmp_path)})
    check_java({"PATH": str(tmp_path / "bin")})


def test_spark_submit_is_found_beside_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "java", "java")
    program(tmp_path / "env", "spark-submit")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "python"))
    inherited = {"PATH": str(tmp_path / "java")}
    made = launch_environment(inherited, extra={"A": "1"}, binary="spark-submit", is_local=True)
    assert made["PATH"].split(os.pathsep) == [str(tmp_path / "env"), str(tmp_path / "java")]
    assert made["PYSPARK_PYTHON"] == str(tmp_path / "env" / "python")
    assert made["A"] == "1"
    assert "PYSPARK_PYTHON" not in launch_environment(inherited, extra={}, binary="spark-submit", is_local=False)


def test_the_spark_home_goes_before_and_path_before_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "java", "java")
    program(tmp_path / "home" / "bin", "spark-submit")
    program(tmp_path / "env", "spark-submit")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "python"))
    inherited = {"PATH": str(tmp_path / "java"), "SPARK_HOME": str(tmp_path / "home"), "PYSPARK_PYTHON": "mine"}
    made = launch_environment(inherited, extra={}, binary="spark-submit", is_local=True)
    assert made["PATH"].startswith(str(tmp_path / "home" / "bin"))
    assert made["PYSPARK_PYTHON"] == "mine"
    program(tmp_path / "java", "spark-submit")
    assert launch_environment(inherited, extra={}, binary="spark-submit", is_local=True)["PATH"] == inherited["PATH"]


def test_a_missing_spark_submit_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(EngineError, match="pip install pyspark"):
        launch_environment({"PATH": str(tmp_path)}, extra={}, binary="spark-submit", is_local=True)


def test_the_defaults_that_a_properties_file_would_hide_are_found(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    assert spark_defaults({"SPARK_HOME": str(tmp_path)}) is None
    (conf / "spark-defaults.conf").write_text("spark.a 1\n")
    assert spark_defaults({"SPARK_HOME": str(tmp_path)}) == conf / "spark-defaults.conf"
    assert spark_defaults({"SPARK_HOME": "/nowhere", "SPARK_CONF_DIR": str(conf)}) == conf / "spark-defaults.conf"


def test_the_defaults_of_an_unpacked_spark_on_path_are_found_without_a_spark_home(tmp_path: Path) -> None:
    program(tmp_path / "spark" / "bin", "spark-submit")
    (tmp_path / "spark" / "conf").mkdir()
    defaults = tmp_path / "spark" / "conf" / "spark-defaults.conf"
    defaults.write_text("spark.a 1\n")
    assert spark_defaults({"PATH": str(defaults.parent.parent / "bin")}) == defaults
    assert spark_defaults({"PATH": ""}, binary=str(tmp_path / "spark" / "bin" / "spark-submit")) == defaults
    # Beside pip's spark-submit lies the script that asks Python where pyspark is.
    (tmp_path / "spark" / "bin" / "find_spark_home.py").touch()
    assert spark_defaults({"PATH": str(tmp_path / "spark" / "bin")}) is None
