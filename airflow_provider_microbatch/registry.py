"""Classes by name, and the classes that a stored text may name. A module is imported only when its name is asked for,
so that users of one system do not need the client library of another.

Definitions come out of checkpoints and triggers, where others can write: naming a class there must not be enough to
have its module imported. The deployment decides which classes may be loaded: the classes below, the entry points of
installed distributions (``airflow_provider_microbatch.sources`` and so on, ``name = "module:Class"``), and the modules
that Airflow's configuration trusts.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from airflow_provider_microbatch.exceptions import DefinitionError, UntrustedError
from airflow_provider_microbatch.settings import SECTION, TRUSTED_MODULES, settings

DISTRIBUTION = "airflow-provider-microbatch"
_PACKAGE = "airflow_provider_microbatch"
_CLASS_PATH = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):[A-Za-z_]\w*", re.ASCII)
_LENGTH = 500


@dataclass(frozen=True)
class Entry:
    """The class that a name stands for.

    :param path: ``module:Class``.
    :param extra: the extra of this distribution that installs what the module imports; None if the module needs none.
    """

    path: str
    extra: str | None = None


class Registry:
    """Names of one kind: the names of this package, then the names of installed entry points.

    :param kind: the kind, in the plural; also the last part of the entry points' group.
    :param entries: the entries of this package, by name.
    """

    def __init__(self, kind: str, entries: Mapping[str, Entry]) -> None:
        self.kind = kind
        self._own = dict(entries)

    @property
    def group(self) -> str:
        """The group of entry points in which other packages add names."""
        return f"{_PACKAGE}.{self.kind}"

    def entries(self) -> dict[str, Entry]:
        """All entries by name. Imports nothing. A name of this package keeps its class, even if another package claims
        the name."""
        return {**{name: Entry(path) for name, path in _installed(self.group)}, **self._own}

    def __contains__(self, name: object) -> bool:
        # Our own names are found without a look at the distributions, which takes milliseconds in every task.
        return name in self._own or name in self.entries()

    def has_path(self, path: str, *, installed: bool) -> bool:
        """Whether an entry is the class at ``path``.

        :param installed: look at the entries of other packages too.
        """
        return any(path == entry.path for entry in (self.entries() if installed else self._own).values())

    def names(self) -> list[str]:
        """All names, sorted. Imports nothing."""
        return sorted(self.entries())

    def load(self, name: str) -> type:
        """The class behind ``name``, imported now.

        :raises DefinitionError: for an unknown name, or a module whose requirements are not installed; the message then
            has the ``pip install`` to run.
        """
        entry = self._own.get(name) or self.entries().get(name)
        if entry is None:
            known = ", ".join(self.names())
            raise DefinitionError(
                f"there is no {name!r:.100} among the {self.kind}; known are {known}. A package adds one by an entry "
                f"point of the group {self.group!r}."
            )
        try:
            return load_class(entry.path)
        except DefinitionError as error:
            if entry.extra is None or not isinstance(error.__cause__, ImportError):
                raise
            raise DefinitionError(
                f"{name!r} of the {self.kind} needs a package that is not installed ({error.__cause__}). "
                f"Run: pip install '{DISTRIBUTION}[{entry.extra}]'"
            ) from error


SOURCES = Registry(
    "sources",
    {
        "delta": Entry(f"{_PACKAGE}.sources.delta:DeltaSource", extra="delta"),
        "file": Entry(f"{_PACKAGE}.sources.file:FileSource"),
        "iceberg": Entry(f"{_PACKAGE}.sources.iceberg:IcebergSource", extra="iceberg"),
        "jdbc": Entry(f"{_PACKAGE}.sources.jdbc:JdbcSource", extra="postgres"),
        "python": Entry(f"{_PACKAGE}.sources.python:PythonSource"),
        "kafka": Entry(f"{_PACKAGE}.sources.kafka:KafkaSource", extra="kafka"),
        "kinesis": Entry(f"{_PACKAGE}.sources.kinesis:KinesisSource", extra="kinesis"),
        "slot": Entry(f"{_PACKAGE}.sources.slot:SlotSource", extra="postgres"),
        "tablestore": Entry(f"{_PACKAGE}.sources.tablestore:TablestoreSource"),
        "dead_letters": Entry(f"{_PACKAGE}.execution.dead_letters:LettersSource"),
    },
)
SINKS = Registry(
    "sinks",
    {
        "delta": Entry(f"{_PACKAGE}.sinks.delta:DeltaSink", extra="delta"),
        "file": Entry(f"{_PACKAGE}.sinks.file:FileSink"),
        "iceberg": Entry(f"{_PACKAGE}.sinks.iceberg:IcebergSink", extra="iceberg"),
        "kafka": Entry(f"{_PACKAGE}.sinks.kafka:KafkaSink", extra="kafka"),
        "postgres": Entry(f"{_PACKAGE}.sinks.postgres:PostgresSink", extra="postgres"),
        "several": Entry(f"{_PACKAGE}.sinks.several:Sinks"),
        "table": Entry(f"{_PACKAGE}.sinks.table:TableSink"),
        "with_dead_letters": Entry(f"{_PACKAGE}.sinks.dead_letters:WithDeadLetters"),
    },
)
CATALOGS = Registry(
    "catalogs",
    {
        "path": Entry(f"{_PACKAGE}.sinks.table.path_catalog:PathCatalog"),
        "spark": Entry(f"{_PACKAGE}.sinks.table.spark_catalog:SparkCatalog"),
    },
)
STATEMENTS = Registry(
    "statements",
    {
        "spark-connect": Entry(f"{_PACKAGE}.sinks.table.statements:ConnectStatements"),
    },
)
HOOKS = Registry("hooks", {"staged_table": Entry(f"{_PACKAGE}.sinks.table.staged_table:StagedTableHook")})
PIPELINES = Registry(
    "pipelines",
    {
        "flow": Entry(f"{_PACKAGE}.flow:PipelineFlow"),
        "flow step": Entry(f"{_PACKAGE}.flow:FlowStep"),
        "merge": Entry(f"{_PACKAGE}.sinks.merge:Merge"),
        "pipeline": Entry(f"{_PACKAGE}.pipeline:Pipeline"),
        "table": Entry(f"{_PACKAGE}.sinks.table.stage_table:Table"),
    },
)
_OBJECT_STORE = Entry(f"{_PACKAGE}.stores.object_store:ObjectStore", extra="object-store")
STORES = Registry(
    "stores",
    {
        "file": Entry(f"{_PACKAGE}.stores.posix:PosixStore"),
        "sql": Entry(f"{_PACKAGE}.stores.sql:SqlStore"),
        **dict.fromkeys(("s3", "s3a", "gs", "abfs"), _OBJECT_STORE),
    },
)
"""Stores by the scheme of an address."""
ENGINES = Registry(
    "engines",
    {
        "spark-connect": Entry(f"{_PACKAGE}.engines.spark_connect:SparkConnectEngine"),
        "spark-submit": Entry(f"{_PACKAGE}.engines.spark_submit:SparkSubmitEngine"),
    },
)
CONNECTIONS = Registry(
    "connections",
    {
        "spark": Entry(f"{_PACKAGE}.engines.spark_submit:SparkSubmitEngine"),
        "spark_connect": Entry(f"{_PACKAGE}.engines.spark_connect:SparkConnectEngine"),
    },
)
"""Engines by the type of the Airflow connection that an operator names."""

REMOVED = {
    f"{_PACKAGE}.engines.submit_statements:SubmitStatements": (
        "another process cannot end a statement that spark-submit runs, and a late one names files that are gone. Use "
        "ConnectStatements('sc://host:15002'), with a Spark Connect server whose session catalog is the metastore."
    )
}
"""Removed classes that definitions of earlier versions name: the reason, and what to use instead."""

MOVED = {
    f"{_PACKAGE}.{old}": f"{_PACKAGE}.{new}"
    for old, new in {
        "execution.pipeline:Pipeline": "pipeline:Pipeline",
        "staging.path_catalog:PathCatalog": "sinks.table.path_catalog:PathCatalog",
        "staging.spark_catalog:SparkCatalog": "sinks.table.spark_catalog:SparkCatalog",
        "staging.stage_table:Table": "sinks.table.stage_table:Table",
        "staging.staged_table:StagedTableHook": "sinks.table.staged_table:StagedTableHook",
        "staging.statements:ConnectStatements": "sinks.table.statements:ConnectStatements",
        "staging.table_sink:TableSink": "sinks.table:TableSink",
    }.items()
}
"""Today's paths of classes, by the paths that checkpoints and triggers of earlier versions name."""


def of_today(values: Any) -> Any:
    """A stored definition, and the definitions in it, with the class paths of today: so that the definition is equal to
    what this version writes.

    :raises DefinitionError: if the definition is nested too deep to be looked through: this package did not write it.
    """
    try:
        return _of_today(values)
    except RecursionError:
        raise DefinitionError("a stored definition is nested too deep.") from None


def _of_today(values: Any) -> Any:
    if isinstance(values, Mapping):
        path = values.get("class")
        moved = {"class": MOVED[path]} if isinstance(path, str) and path in MOVED else {}
        return {**{name: _of_today(value) for name, value in values.items()}, **moved}
    return [_of_today(value) for value in values] if isinstance(values, list) else values


DEFINITIONS = (SOURCES, SINKS, CATALOGS, STATEMENTS, HOOKS, PIPELINES)
"""The registries of the classes of definitions."""


def load_stored_class(path: object) -> type:
    """The class that a definition out of a checkpoint or trigger names. A class that may not be loaded is not imported.

    :raises UntrustedError: if the class may not be loaded, see :func:`check_class_path`.
    :raises DefinitionError: if the class cannot be imported here, or was removed.
    """
    if isinstance(path, str) and path in REMOVED:
        raise DefinitionError(f"{path!r} was removed: {REMOVED[path]}")
    return load_class(check_class_path(path))


def load_class(path: str) -> type:
    """Import the class at ``module:Name``.

    :raises DefinitionError: if there is no such class, or it cannot be imported here; the message names the module.
    """
    module_name, _, name = path.partition(":")
    try:
        loaded = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise DefinitionError(f"cannot load {path!r}: {error}. Install or ship the module that defines it.") from error
    if not isinstance(loaded, type):
        raise DefinitionError(f"{path!r} is not a class.")
    return loaded


def check_class_path(path: object) -> str:
    """The path, if the class at this path may be loaded because a checkpoint or a trigger names it: a class of this
    package, of an installed entry point, or of a module that the settings trust.

    :raises UntrustedError: if the class may not be loaded.
    """
    # The path is taken from the match: a text that is equal to a path may be of a class of its own.
    found = _CLASS_PATH.fullmatch(path) if isinstance(path, str) and len(path) <= _LENGTH else None
    if found is None:
        raise UntrustedError(f"{path!r:.100} is no class path of the form 'module:Class', so nothing was loaded.")
    module = found["module"]
    # Our own classes of all kinds come first: a look at the distributions takes milliseconds in every task.
    if any(kind.has_path(found[0], installed=also) for also in (False, True) for kind in DEFINITIONS):
        return found[0]
    if any(module == trusted or module.startswith(f"{trusted}.") for trusted in settings().trusted_modules):
        return found[0]
    raise UntrustedError(
        f"{found[0]!r} was not loaded: a checkpoint or trigger names it, but it is neither a class of this package nor "
        f"one of an installed entry point ({_PACKAGE}.sources, .sinks, .hooks, …). If it is yours, trust its module in "
        f"Airflow's configuration: [{SECTION}] {TRUSTED_MODULES} = {module} "
        f"(AIRFLOW__{SECTION.upper()}__{TRUSTED_MODULES.upper()}={module})."
    )


@cache
def _installed(group: str) -> tuple[tuple[str, str], ...]:
    """Names and class paths of a group's entry points, as the distributions had them at the first look."""
    return tuple((point.name, f"{point.module}:{point.attr}") for point in entry_points(group=group))
