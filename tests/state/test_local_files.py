"""The jar with which the Sparks of tests set the rights of local files; see ``tests/support/local_files.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.environments import local_files
from tests.support.local_files import JAR, behind, main
from tests.support.local_spark import another_jvm, local_spark

pytestmark = pytest.mark.slow


@pytest.mark.spark
def test_files_have_the_rights_that_hadoop_gives_them_without_a_program_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that goes without the jar is twice as slow, and says nothing."""
    for name, value in behind(local_files()).items():
        monkeypatch.setenv(name, value)
    with another_jvm(), local_spark() as spark:
        context: Any = spark.sparkContext
        hadoop = context._jvm.org.apache.hadoop
        conf = context._jsc.hadoopConfiguration()
        files = hadoop.fs.FileSystem.getLocal(conf)
        assert files.getClass().getName() == "LocalFiles"
        inner = hadoop.fs.FileContext.getFileContext(conf).getDefaultFileSystem()
        assert inner.getClass().getName() == "LocalFiles$InContext"
        made = hadoop.fs.Path(str(tmp_path / "made"))
        files.create(made).close()
        assert (tmp_path / "made").stat().st_mode & 0o777 == 0o644
        files.setPermission(made, hadoop.fs.permission.FsPermission("1750"))
        assert (tmp_path / "made").stat().st_mode & 0o7777 == 0o1750
        (tmp_path / "link").symlink_to("made")
        link = files.getFileLinkStatus(hadoop.fs.Path(str(tmp_path / "link")))
        assert link.getSymlink().getName() == "made"


def test_who_has_an_older_jar_open_keeps_it(tmp_path: Path) -> None:
    (tmp_path / JAR).write_bytes(b"older")
    with (tmp_path / JAR).open("rb") as opened:
        main(tmp_path)
        assert opened.read() == b"older"
    assert {path.name for path in tmp_path.iterdir()} == {JAR}
