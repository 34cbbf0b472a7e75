"""The driver of a batch takes its classes from an archive, and runs without one that is not as it was made."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.engines import class_archive
from tests.environments import QUICK_JAVA


@pytest.fixture(autouse=True)
def without_that_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java writes no archive while it takes classes from another one."""
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    for name, value in QUICK_JAVA.items():
        monkeypatch.setenv(name, value)


@pytest.mark.spark
def test_an_archive_is_made_that_java_takes_and_is_used_while_it_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That a driver takes its classes from one is in test_spark_submit.py."""
    folder = tmp_path / "spark classes"
    quick = [f"--conf={setting}" for setting in ("spark.sql.shuffle.partitions=1", "spark.ui.enabled=false")]
    assert main(["class-archive", str(folder), "--json", *quick]) == 0
    made = json.loads(capsys.readouterr().out)
    archive = folder / made["file"]
    assert archive.stat().st_size == made["bytes"]

    assert f'"-XX:SharedArchiveFile={archive}"' in class_archive.with_archive(str(folder), {})["SPARK_SUBMIT_OPTS"]

    # Java would map what is left of it, and be killed by a signal when it reads beyond the end.
    archive.chmod(0o600)
    with archive.open("r+b") as file:
        file.truncate(made["bytes"] // 2)
    assert class_archive.with_archive(str(folder), {}) == {}


def test_an_archive_that_cannot_be_used_is_told_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, conf = tmp_path / "classes", tmp_path / "conf"
    folder.mkdir()
    conf.mkdir()
    given = {"SPARK_CONF_DIR": str(conf), "SPARK_SUBMIT_OPTS": "-Dmine=1"}

    def told() -> str:
        caplog.clear()
        assert class_archive.with_archive(str(folder), given) == given
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        return record.getMessage()

    assert f"microbatch class-archive {folder}" in told()
    (folder / "archive.json").write_text("{")
    assert "cannot be read" in told()
    facts = {"file": "classes-1.jsa", "bytes": 3, "spark": "4.1.3"}
    (folder / "archive.json").write_text(json.dumps(facts))
    assert "classes-1.jsa is missing" in told()
    (folder / "classes-1.jsa").write_bytes(b"ab")
    assert "has 2 bytes, and was made with 3" in told()
    (folder / "classes-1.jsa").write_bytes(b"abc")
    (conf / "log4j2.properties").touch()
    assert "log4j2.properties" in told()
    (conf / "log4j2.properties").unlink()

    # Of Spark's folder, the defaults travel in the properties file.
    for name in ("spark-defaults.conf", "log4j2.properties.template"):
        (conf / name).touch()
    used = class_archive.with_archive(str(folder), given)
    assert used["SPARK_SUBMIT_OPTS"] == f"-Dmine=1 -XX:SharedArchiveFile={folder}/classes-1.jsa"
    assert used["SPARK_CONF_DIR"] == str(folder / "conf")
    given["HADOOP_CONF_DIR"] = str(tmp_path / "hadoop")
    shutil.copytree(conf, tmp_path / "hadoop")
    assert "HADOOP_CONF_DIR" in told()
    for wrong in ("classes", ["/classes"]):
        assert class_archive.with_archive(wrong, {}) == {}
        assert "absolute path" in caplog.text


def test_what_keeps_java_from_sharing_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hive-site.xml").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert main(["class-archive", str(tmp_path / "classes")]) == 2
    assert "hive-site.xml" in capsys.readouterr().err
    assert not (tmp_path / "classes").exists()


@pytest.mark.spark
def test_a_batch_that_fails_leaves_the_archive_that_was_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "archive.json").write_text('{"file": "classes-1.jsa", "bytes": 3, "spark": "4.1.3"}')
    (tmp_path / "classes-1.jsa").write_bytes(b"abc")
    (tmp_path / "classes-2.jsa").write_bytes(b"left by one that was killed")
    assert main(["class-archive", str(tmp_path), "--conf", "spark.driver.memory=lots"]) == 2
    assert "spark-submit ended with status" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"archive.json", "classes-1.jsa", "conf", "lock"}
    assert class_archive.read(tmp_path).file == "classes-1.jsa"
