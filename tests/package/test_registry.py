"""Classes are found by name; which of them a stored text may lead to is said by whoever installed the software."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_microbatch import settings
from airflow_provider_microbatch.definition import Definition, class_path
from airflow_provider_microbatch.exceptions import DefinitionError, UntrustedError
from airflow_provider_microbatch.job_status import check_hook
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.registry import (
    CONNECTIONS,
    DEFINITIONS,
    ENGINES,
    SOURCES,
    Entry,
    Registry,
    load_stored_class,
)
from airflow_provider_microbatch.registry import _installed as installed
from airflow_provider_microbatch.settings import Settings
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.spark_catalog import SparkCatalog
from airflow_provider_microbatch.sinks.table.statements import ConnectStatements
from airflow_provider_microbatch.sources import Source
from airflow_provider_microbatch.sources.file import FileSource

SHIPPED = """
import pathlib
pathlib.Path({flag!r}).touch()
from airflow_provider_microbatch.sources.file import FileSource
class Shipped(FileSource):
    class Inner(FileSource):
        pass
"""


@pytest.fixture
def flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that is there once the module ``acme_shipped.sources`` has been imported."""
    found = tmp_path / "imported"
    (tmp_path / "acme_shipped").mkdir()
    (tmp_path / "acme_shipped" / "__init__.py").touch()
    (tmp_path / "acme_shipped" / "sources.py").write_text(SHIPPED.format(flag=str(found)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(settings, "_given", Settings)
    installed.cache_clear()
    yield found
    installed.cache_clear()
    for name in ("acme_shipped", "acme_shipped.sources"):
        sys.modules.pop(name, None)


def trust(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    monkeypatch.setattr(settings, "_given", lambda: Settings(trusted_modules=modules))


def stored(path: object) -> dict[str, object]:
    return {"class": path, "version": 1, "arguments": {"path": "/landing"}}


def test_every_name_leads_to_its_class() -> None:
    assert SOURCES.load("file") is FileSource
    for kind in DEFINITIONS:
        for name, entry in kind.entries().items():
            loaded = kind.load(name)
            assert issubclass(loaded, Definition)
            assert class_path(loaded) == entry.path, "what stands in definitions is what is registered"
    assert ENGINES.names() == ["acme-process", "spark-connect", "spark-submit"]
    assert CONNECTIONS.names() == ["acme_process", "spark", "spark_connect"]


@pytest.mark.slow
def test_every_definition_of_this_package_is_registered() -> None:
    code = (
        "import pkgutil, importlib, airflow_provider_microbatch as package\n"
        "for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "    if not found.name.endswith(('spark_connect.runner', 'main')): importlib.import_module(found.name)\n"
        "from airflow_provider_microbatch.definition import Definition, class_path\n"
        "from airflow_provider_microbatch.registry import load_stored_class\n"
        "import inspect, dataclasses\n"
        "def below(kind):\n"
        "    for one in kind.__subclasses__():\n"
        "        yield one\n"
        "        yield from below(one)\n"
        "for one in below(Definition):\n"
        "    if dataclasses.is_dataclass(one) and not inspect.isabstract(one):\n"
        "        assert load_stored_class(class_path(one)) is one\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(DefinitionError, match=r"no 'kafak' among the sources; known are .*file"):
        SOURCES.load("kafak")


def test_a_missing_extra_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_a_client.py").write_text("import no_such_client_library\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = Registry("sources", {"kafka": Entry("needs_a_client:Thing", extra="kafka")})
    with pytest.raises(DefinitionError, match=r"pip install 'airflow-provider-microbatch\[kafka\]'") as caught:
        registry.load("kafka")
    assert "no_such_client_library" in str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "os:system",
        "subprocess:Popen",
        "builtins:eval",
        "acme_shipped.sources:Shipped",
        "acme_shipped.sources:Shipped.Inner",
        "acme_shipped.sources:",
        "acme_shipped.sources",
        ":Shipped",
        "acme_shipped.sources:Shipped\n",
        "acme_shipped/sources:Shipped",
        "..sources:Shipped",
        ".acme_shipped.sources:Shipped",
        "acme_shipped..sources:Shipped",
        "__main__:Shipped",
        "airflow_provider_microbatch.engines.packaging:Path",
        "airflow_provider_microbatch.sources.file:FileSource.open",
        "airflow_provider_microbatch.sources.file:os",
        "airflow_provider_microbatch.sources.file.evil:FileSource",
        "x" * 1_000_000 + ":Shipped",
        "\uff41cme_shipped.sources:Shipped",
        None,
        7,
        ["acme_shipped.sources:Shipped"],
        {"module": "acme_shipped.sources"},
    ],
    ids=lambda path: repr(path)[:50],
)
def test_a_class_that_nobody_installed_is_refused_before_anything_is_imported(path: object, flag: Path) -> None:
    before = set(sys.modules)
    with pytest.raises(UntrustedError) as refused:
        Source.from_dict(stored(path))
    assert len(str(refused.value)) < 1500
    assert not flag.exists()
    assert set(sys.modules) == before


def test_the_refusal_names_the_setting_to_use(flag: Path) -> None:
    with pytest.raises(UntrustedError, match=r"\[microbatch\] trusted_modules = acme_shipped\.sources") as refused:
        Source.from_dict(stored("acme_shipped.sources:Shipped"))
    assert "AIRFLOW__MICROBATCH__TRUSTED_MODULES=acme_shipped.sources" in str(refused.value)


@pytest.mark.parametrize("trusted", ["acme_shipped.sources", "acme_shipped"])
def test_a_module_or_package_that_is_trusted_is_loaded(
    trusted: str, flag: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(monkeypatch, "other", trusted)
    assert Source.from_dict(stored("acme_shipped.sources:Shipped")).location() == "/landing"
    assert flag.exists()


@pytest.mark.parametrize("trusted", ["acme", "acme_ship", "acme_shipped.source", "", "shipped.sources", "*"])
def test_trust_ends_at_the_dot(trusted: str, flag: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(monkeypatch, trusted)
    with pytest.raises(UntrustedError):
        Source.from_dict(stored("acme_shipped.sources:Shipped"))
    assert not flag.exists()


@pytest.mark.parametrize("name", ["pathlib", "FileSource.open", "__loader__", "__name__", "__builtins__", "nothing"])
def test_in_a_trusted_module_only_a_class_of_the_kind_is_made(
    name: str, flag: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(monkeypatch, "acme_shipped.sources")
    with pytest.raises(DefinitionError):
        Source.from_dict(stored(f"acme_shipped.sources:{name}"))


SERVER = "sc://spark:15002"


def table(url: str = SERVER) -> TableSink:
    return TableSink(SparkCatalog(ConnectStatements(url), "/lake"), "shop.orders", schema="id long")


def trust_server(monkeypatch: pytest.MonkeyPatch, *servers: str) -> None:
    monkeypatch.setattr(settings, "_given", lambda: Settings(trusted_servers=servers))


def test_a_server_that_only_a_checkpoint_names_is_refused_with_the_setting_to_use() -> None:
    with pytest.raises(UntrustedError, match=rf"\[microbatch\] trusted_servers = {SERVER}") as refused:
        Sink.from_dict(table().to_dict())
    assert f"AIRFLOW__MICROBATCH__TRUSTED_SERVERS={SERVER}" in str(refused.value)


def test_a_server_that_is_trusted_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    trust_server(monkeypatch, "sc://other", SERVER)
    assert Sink.from_dict(table().to_dict()) == table()


@pytest.mark.parametrize(
    "url", ["sc://spark:15002/;use_ssl=false", "sc://spark:1500", "sc://spark:15002.evil.org", "sc://spark"]
)
def test_another_address_is_another_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trust_server(monkeypatch, SERVER)
    with pytest.raises(UntrustedError):
        Sink.from_dict(table(url).to_dict())


def test_servers_of_objects_at_hand_need_no_trust() -> None:
    older = dataclasses.replace(table(), schema="id int").to_dict()
    assert Sink.from_dict(older, live=[table()]).to_dict() == older
    with pytest.raises(UntrustedError):
        Sink.from_dict(older, live=[table("sc://other")])


def test_a_dag_names_its_own_servers() -> None:
    pipeline = Pipeline("orders", checkpoint="/c", sources={"s": FileSource("/l")}, sink=table())
    assert pipeline.servers() == {SERVER}
    assert Pipeline.from_dict(pipeline.to_dict(), any_server=True) == pipeline
    for hook in pipeline.hooks:
        check_hook(hook, where="here")


def test_a_registered_class_of_another_kind_is_refused() -> None:
    with pytest.raises(DefinitionError, match="is not a Source"):
        Source.from_dict(stored("airflow_provider_microbatch.sinks.file:FileSink"))


def test_what_is_nested_in_a_definition_is_refused_too(flag: Path) -> None:
    hidden = {**stored("airflow_provider_microbatch.sources.file:FileSource")}
    hidden["arguments"] = {"path": "/landing", "options": {"x": [{"y": stored("acme_shipped.sources:Shipped")}]}}
    with pytest.raises(UntrustedError):
        Source.from_dict(hidden)
    assert not flag.exists()


def test_an_installed_package_adds_names_by_entry_points(tmp_path: Path, flag: Path) -> None:
    info = tmp_path / "acme_shipped-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-shipped\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[airflow_provider_microbatch.sources]\nacme = acme_shipped.sources:Shipped\nfile = acme_shipped.sources:Evil\n"
    )
    importlib.invalidate_caches()
    installed.cache_clear()
    assert {"acme", "file"} <= set(SOURCES.names())
    assert not flag.exists(), "names are told without importing anything"
    assert SOURCES.load("file") is FileSource
    assert load_stored_class("acme_shipped.sources:Shipped") is SOURCES.load("acme")
    with pytest.raises(UntrustedError):
        load_stored_class("acme_shipped.sources:Evil")


def test_what_is_at_hand_is_taken_itself_and_nothing_is_loaded(flag: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(monkeypatch, "acme_shipped")
    live = shipped()
    trust(monkeypatch)
    assert Source.from_dict(live.to_dict(), live=[live]) is live
    changed = {**live.to_dict(), "arguments": {**live.to_dict()["arguments"], "path": "/etc"}}
    with pytest.raises(UntrustedError):
        Source.from_dict(changed, live=[live])


def shipped() -> Source:
    return Source.from_dict(stored("acme_shipped.sources:Shipped"))


@pytest.mark.parametrize("data", [None, 7, "x", [], {}, {"class": None}], ids=repr)
def test_what_is_no_definition_at_all_is_an_error_of_its_own(data: object) -> None:
    with pytest.raises(DefinitionError):
        Source.from_dict(data)  # type: ignore[arg-type]
    known = "airflow_provider_microbatch.sources.file:FileSource"
    for arguments in (7, "x", ["path"], None):
        with pytest.raises(DefinitionError):
            Source.from_dict({"class": known, "version": 1, "arguments": arguments})


def test_the_planning_half_imports_neither_airflow_nor_spark() -> None:
    code = (
        "import sys, airflow_provider_microbatch.sources.file.open, airflow_provider_microbatch.runtime.files; "
        "print([name for name in ('airflow', 'pyspark', 'pandas', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
