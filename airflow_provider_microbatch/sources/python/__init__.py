"""Any Python data source of PySpark that has a stream reader, used unchanged.

Planned in a process that has PySpark and no JVM, read by its own partitions.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

from airflow_provider_microbatch.definition import is_read_back
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.registry import check_class_path
from airflow_provider_microbatch.runtime.masking import refusal
from airflow_provider_microbatch.sources import OpenSource, Source, SourceContext

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class PythonSource(Source):
    """A class that extends ``pyspark.sql.datasource.DataSource`` and has a ``streamReader`` or a
    ``simpleStreamReader``.

    Offsets are those that its reader makes, in the form in which Spark's own checkpoints have them. Ranges are planned
    by ``latestOffset``, with limits where it accepts them; for a simple reader by ``read``, of which only the end is
    used: its rows are then read by ``readBetweenOffsets``.

    :param source: ``module:Class``. The module is imported where Airflow plans and where Spark reads, never by a DAG
        file.
    :param options: the options that ``.option(…)`` would set. They are stored and shown: no secret belongs there.
    :param schema: the columns as DDL, in place of its own.
    :param travels: send the class's module, or the package that contains it, to Spark with each batch; False if it is
        installed there.
    :raises DefinitionError: for a wrong type or value, naming the field.
    :raises UntrustedError: if a checkpoint or trigger names a class that is not trusted.
    """

    source: str
    _: KW_ONLY
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str | None = None
    travels: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not _PATH.fullmatch(self.source):
            raise DefinitionError(
                f"PythonSource: source must be the class as 'module:Class', not {self.source!r:.200}. A DAG file does "
                "not import it: that would load PySpark at every parse."
            )
        where = f"PythonSource({self.source!r})"
        if not isinstance(self.options, Mapping):
            raise DefinitionError(f"{where}: options must be a dict, not {self.options!r:.200}.")
        for name, value in self.options.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise DefinitionError(f"{where}: options: {name!r:.200} and its value must be texts.")
            if not is_read_back() and (refused := refusal(name, value)) is not None:
                raise DefinitionError(f"{where}: options: {refused}")
        if self.schema is not None and (not isinstance(self.schema, str) or not self.schema.strip()):
            raise DefinitionError(
                f"{where}: schema must be a text that is not empty, or None; not {self.schema!r:.200}."
            )
        if not isinstance(self.travels, bool):
            raise DefinitionError(f"{where}: travels must be True or False, not {self.travels!r:.200}.")
        if is_read_back():
            self._check_found()

    def open(self, context: SourceContext) -> OpenSource:
        """Return the source opened for one checkpoint."""
        from airflow_provider_microbatch.sources.python.open import OpenPythonSource

        return OpenPythonSource(self, context)

    def reads_as(self) -> Mapping[str, str | None]:
        options = {f"options[{name.lower()!r}]": value for name, value in self.options.items()}
        return {"source": self.source, "schema": self.schema, **options}

    def location(self) -> str:
        """The class."""
        return self.source

    @property
    def module(self) -> str:
        """The top-level module that travels."""
        return self.source.partition(":")[0].partition(".")[0]

    def _check_found(self) -> None:
        """Check that the class is trusted, like any other class from a checkpoint, since the planner would run it; and
        that its module is installed here: where it is not, as in a triggerer, another process has to plan."""
        check_class_path(self.source)
        if importlib.util.find_spec(self.module) is None:
            raise DefinitionError(f"there is no module {self.module!r} here, which {self.source!r} is in.")
