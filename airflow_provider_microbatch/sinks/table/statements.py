"""Running statements in Spark's catalog. The catalog writes the statements; the definition that runs them is here."""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.runtime.statements import StatementFailure, end_by_connect, run_by_connect

Rows = list[dict[str, Any]]


class StatementError(SinkError):
    """Spark refused a statement.

    :param condition: Spark's error condition, such as ``TABLE_OR_VIEW_NOT_FOUND``.
    """

    def __init__(self, condition: str, error: str) -> None:
        super().__init__(error)
        self.condition = condition


class Statements(Definition, ABC):
    """Runs statements of Spark SQL. Every call has a session of its own."""

    @abstractmethod
    def handle(self) -> Mapping[str, Any]:
        """Choose the handle of a step, by which any process can end the step: JSON values, unique, no secret. Touches
        nothing."""

    @abstractmethod
    def run(self, statements: Sequence[str], *, handle: Mapping[str, Any] | None = None) -> list[Rows]:
        """Run the statements in order.

        :param handle: handle of the step; a step is run only once. None: the statements change nothing, so no process
            has to end them.
        :return: the rows of each statement.
        :raises StatementError: at the first statement that fails; later ones are not run.
        """

    @abstractmethod
    def end(self, handle: Mapping[str, Any]) -> None:
        """End a step that another process may have begun. When this returns no statement of it runs, or ever will.

        :param handle: the handle that was chosen; it comes from a file that others may have written.
        :raises SinkError: if the step's state is unknown, or the handle was not made by :meth:`handle`.
        """


@dataclass(frozen=True)
class ConnectStatements(Statements):
    """Runs statements on a Spark Connect server, without a JVM in this process.

    :param url: ``sc://host:port``. It is written to logs, so it must not hold a token or a password.
    :raises DefinitionError: if ``url`` is no such URL, or holds a token or a password.
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

    def servers(self) -> set[str]:
        return {self.url}

    def handle(self) -> Mapping[str, Any]:
        # PySpark chooses the user in the same way; a server identifies sessions by id and user.
        user = os.environ.get("SPARK_USER") or os.environ.get("USER") or "microbatch"
        return {"url": self.url, "session": str(uuid.uuid4()), "user": user}

    def run(self, statements: Sequence[str], *, handle: Mapping[str, Any] | None = None) -> list[Rows]:
        chosen = handle or self.handle()
        try:
            return run_by_connect(self.url, statements, session=chosen["session"], user=chosen["user"])
        except StatementFailure as failed:
            raise StatementError(failed.condition, failed.error) from failed

    def end(self, handle: Mapping[str, Any]) -> None:
        session, user = handle.get("session"), handle.get("user")
        if handle.get("url") != self.url:
            # That server is not contacted: otherwise a file could choose who is sent this server's token.
            raise SinkError(f"it was sent to {handle.get('url')!r}, and the catalog's server is {self.url} now")
        if not isinstance(user, str) or not _is_uuid(session):
            raise SinkError("the record has no session and user")
        try:
            end_by_connect(self.url, session=str(session), user=user)
        except StatementFailure as failed:
            raise SinkError(failed.error) from failed


def _is_uuid(text: object) -> bool:
    try:
        return isinstance(text, str) and str(uuid.UUID(text)) == text
    except ValueError:
        return False


def literal(text: str) -> str:
    """A string literal of Spark SQL. Before it reads a statement, Spark puts variables in place of ``${…}``, also those
    of the server's environment: text from data must not name one."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{escaped}'"


def quoted(*parts: str | None) -> str:
    """A name of one or two parts, each in backticks; None is left out.

    :raises SinkError: if Spark would put a variable in place of a part of the name, which nothing escapes in a name.
    """
    named = next((part for part in parts if part and "${" in part), None)
    if named is not None:
        raise SinkError(
            f"the name {named!r} cannot be written in a statement: Spark puts a variable in place of ${{…}}. Have the "
            "transform give the column, or the pipeline the table, another name."
        )
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts if part)
