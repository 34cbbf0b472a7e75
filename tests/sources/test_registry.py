"""Sources are found by name, and a missing extra says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.registry import Entry, Registry
from airflow_provider_microbatch.sources import Source
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.registry import SOURCES


def registry(path: str) -> Registry[Source]:
    return Registry("source", Source, {"kafka": Entry(path, extra="kafka")})  # type: ignore[type-abstract]


def test_every_name_leads_to_its_class() -> None:
    assert SOURCES.load("file") is FileSource
    for name in SOURCES.names():
        assert issubclass(SOURCES.load(name), Source)


def test_a_users_own_class_is_found_by_its_path() -> None:
    assert SOURCES.load("airflow_provider_microbatch.sources.file:FileSource") is FileSource


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(DefinitionError, match=r"no source 'kafak'; known are .*file"):
        SOURCES.load("kafak")


def test_a_missing_extra_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_a_client.py").write_text("import no_such_client_library\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DefinitionError, match=r"pip install 'airflow-provider-microbatch\[kafka\]'") as caught:
        registry("needs_a_client:Thing").load("kafka")
    assert "no_such_client_library" in str(caught.value)


def test_a_class_of_another_kind_is_refused() -> None:
    with pytest.raises(DefinitionError, match="is not a Source"):
        registry("airflow_provider_microbatch.execution.pipeline:Pipeline").load("kafka")


def test_the_planning_half_imports_neither_airflow_nor_spark() -> None:
    code = (
        "import sys, airflow_provider_microbatch.sources.file_open, airflow_provider_microbatch.runtime.files; "
        "print([name for name in ('airflow', 'pyspark', 'pandas', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
