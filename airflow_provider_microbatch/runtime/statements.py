"""Runs SQL statements, one after the other: the orchestrator's way to a catalog that lives behind Spark."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow_provider_microbatch.runtime.connect import RemoteSession
from airflow_provider_microbatch.runtime.listening import PORT, refusal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PROBE_SECONDS = 10.0
"""Seconds to wait for a connection."""

RETRIES = 6
"""Tries of a call to a server that was reachable and does not answer any more; together they take half a minute."""


class StatementFailure(Exception):
    """A statement failed; the statements behind it were not run.

    :param condition: Spark's error condition, such as ``TABLE_OR_VIEW_NOT_FOUND``; empty if the error has none.
    :param error: one paragraph for a person.
    """

    def __init__(self, condition: str, error: str) -> None:
        super().__init__(error)
        self.condition = condition
        self.error = error


def run(spark: SparkSession, statements: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Run statements in a session of any kind.

    :return: the rows of each statement, by column.
    :raises StatementFailure: at the first statement that fails.
    """
    from pyspark.errors import PySparkException

    results = []
    with _quiet():
        for statement in statements:
            try:
                results.append([row.asDict(recursive=True) for row in spark.sql(statement).collect()])
            except PySparkException as failed:
                raise StatementFailure(failed.getCondition() or "", f"{statement}: {_first_lines(failed)}") from failed
    return results


def run_by_connect(url: str, statements: Sequence[str], *, session: str, user: str) -> list[list[dict[str, Any]]]:
    """Run statements in a new session on a Spark Connect server. Starts no JVM.

    :param url: ``sc://host:port``.
    :param session: id of the session, chosen by the caller, so that the caller can end the session; closed at the end.
    :param user: the session's user.
    :raises StatementFailure: at the first statement that fails, or if the server cannot be reached, or falls silent.
    """
    # Not by a builder: a builder would make this session, or Connect mode, global to the process.
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    from airflow_provider_microbatch.runtime.guard import Guard
    from airflow_provider_microbatch.runtime.silence import Calls, Watch, has_not_answered

    _check(url)
    calls = Calls()
    parameters = f"session_id={session};user_id={quote(user)}"
    try:
        builder = DefaultChannelBuilder(f"{url};{parameters}" if "/;" in url else f"{url.rstrip('/')}/;{parameters}")
        builder.add_interceptor(Guard(url))
        builder.add_interceptor(calls)
        spark = ConnectSession(connection=builder)
    except PySparkException as error:
        raise StatementFailure("", f"the Spark Connect server {url} cannot be used: {_first_lines(error)}") from error
    # PySpark's own policy would retry for ten minutes, while the task logs nothing.
    spark.client.set_retry_policies([DefaultPolicy(max_retries=RETRIES, max_backoff=2000)])
    watch = Watch(spark, on_silence=calls.end)
    try:
        return run(spark, statements)  # type: ignore[arg-type]
    except Exception as error:
        if watch.is_silent:
            raise StatementFailure("", f"the Spark Connect server {url} {has_not_answered()}") from error
        raise
    finally:
        try:
            watch.end()
        finally:
            calls.close(spark.client)


def end_by_connect(url: str, *, session: str, user: str) -> None:
    """End the statements that :func:`run_by_connect` began in another process; see :meth:`RemoteSession.end`.

    :raises StatementFailure: if it is unknown whether they have ended.
    """
    import grpc  # type: ignore[import-untyped,unused-ignore]

    _check(url)
    try:
        RemoteSession(url, session=session, user=user).end()
    except (grpc.RpcError, RuntimeError) as error:
        told = error.details() if isinstance(error, grpc.Call) else error
        raise StatementFailure("", f"the Spark Connect server {url} did not end it: {told}") from error


def _check(url: str) -> None:
    address = urlsplit(url)
    try:
        socket.create_connection((address.hostname, address.port or PORT), timeout=PROBE_SECONDS).close()
    except OSError as error:
        raise StatementFailure("", f"the Spark Connect server {url} cannot be reached: {error}") from error
    if why := refusal(url):
        raise StatementFailure("", f"the Spark Connect server {url} is not spoken to: {why}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence PySpark's log of refused statements: PySpark logs each with the JVM's stack, even "there is no such
    table", which is a valid answer."""
    from pyspark.logger import PySparkLogger

    noise = PySparkLogger.getLogger("SQLQueryContextLogger")
    level = noise.level
    noise.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        noise.setLevel(level)


def _first_lines(error: Exception) -> str:
    return str(error).partition("\n\n")[0].strip()[:1000]
