"""How statements reach Spark's catalog. The catalog writes them; what runs them is a definition of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.runtime.statements import StatementFailure, run_by_connect

Rows = list[dict[str, Any]]


class StatementError(SinkError):
    """Spark refused a statement.

    :param condition: Spark's error condition, such as ``TABLE_OR_VIEW_NOT_FOUND``.
    """

    def __init__(self, condition: str, error: str) -> None:
        super().__init__(error)
        self.condition = condition


class Statements(Definition, ABC):
    """What runs statements of Spark SQL. Every call is a session of its own."""

    @abstractmethod
    def run(self, statements: Sequence[str]) -> list[Rows]:
        """Run them in order.

        :return: the rows of each.
        :raises StatementError: at the first that fails; those after it are not run.
        """


@dataclass(frozen=True)
class ConnectStatements(Statements):
    """By a Spark Connect server, without a JVM in this process.

    :param url: ``sc://host:port``. It is written to logs, so it must not hold a token or a password.
    :raises DefinitionError: if it is no such URL, or holds one.
    """

    url: str

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not self.url.startswith("sc://") or not urlsplit(self.url).hostname:
            raise DefinitionError(f"ConnectStatements: {self.url!r} is not of the form 'sc://host:port'.")
        if "token=" in self.url or "@" in self.url:
            raise DefinitionError(
                "ConnectStatements: the URL holds a secret, which would be written to the checkpoint. Leave it out and "
                "set the environment variable SPARK_CONNECT_AUTHENTICATE_TOKEN."
            )

    def run(self, statements: Sequence[str]) -> list[Rows]:
        try:
            return run_by_connect(self.url, statements)
        except StatementFailure as failed:
            raise StatementError(failed.condition, failed.error) from failed


def literal(text: str) -> str:
    """A string literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def quoted(*parts: str | None) -> str:
    """A name of one or two parts, each in backticks; None is left out."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts if part)
