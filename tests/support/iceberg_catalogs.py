"""Catalogs of Iceberg tables that are servers, each started when it is first needed, one for a process of tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pyspark

from tests.environments import jars
from tests.support.child_server import only_here
from tests.support.connect_server import free_port, served
from tests.support.metastore import hive_metastore

_REST = Path(__file__).parent / "java" / "RestCatalog.java"


@cache
def rest() -> str:
    """The address of a catalog that speaks Iceberg's REST protocol."""
    return _kept(_rest_catalog)


@cache
def hive() -> str:
    """The address of a Hive metastore."""
    return _kept(lambda folder: hive_metastore(folder, locks=True))


def namespace_of(folder: Path) -> str:
    """A namespace for the tables of a folder: catalogs are shared."""
    return f"{folder.parent.name}_{folder.name}".replace("-", "_").lower()


def _kept(server: Callable[[Path], AbstractContextManager[str]]) -> str:
    folder = Path(tempfile.mkdtemp(prefix="microbatch-iceberg-"))
    servers = ExitStack()
    servers.callback(shutil.rmtree, folder, ignore_errors=True)
    address = servers.enter_context(server(folder))
    only_here(servers.close)
    return address


@contextmanager
def _rest_catalog(folder: Path) -> Iterator[str]:
    hadoop = sorted(Path(pyspark.__path__[0], "jars").glob("hadoop-client-*.jar"))
    port, classes = free_port(), ":".join(map(str, [*jars("iceberg-rest"), *hadoop]))
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classes, str(_REST), str(port)]
    with served([*command, str(folder / "catalog.db")], port, folder / "catalog.log"):
        yield f"http://127.0.0.1:{port}"
