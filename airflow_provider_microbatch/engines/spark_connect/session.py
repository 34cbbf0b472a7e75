"""The session of one attempt on a Spark Connect server. No other attempt uses the session, before or after.

A session of its own separates the state that a server keeps by session: analysed plans, temporary views, settings,
functions, files. The state that a server keeps for all sessions is separated here: a frame that is cached is marked, so
that it never answers a plan of another attempt; and names that all sessions would see are refused (see :mod:`.names`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.engines.spark_connect.names import NamesOfAll
from airflow_provider_microbatch.runtime.connect import RemoteSession
from airflow_provider_microbatch.runtime.silence import Watch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_RETRIES = 5
"""Retries of a call to a server that does not answer: the first after 50 ms, then four times as long each; 17 s in all.
PySpark's own 15 retries are ten minutes, in which a task would wait for a server that has died."""


class AttemptSession:
    """A new session, open when the constructor returns.

    :param url: URL of the server, with token and user.
    :param on_silence: called once, in a thread, when the server has not answered for a minute: each call of the session
        may then wait for ever.
    :raises pyspark.errors.PySparkException: if the server cannot be used.
    """

    def __init__(self, url: str, *, on_silence: Callable[[], None]) -> None:
        from pyspark.sql.connect.client import DefaultChannelBuilder
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        from airflow_provider_microbatch.runtime.guard import Guard

        self.id = str(uuid.uuid4())
        self._kept: list[DataFrame] = []
        # PySpark's own builder sets it too: PySpark's functions then make expressions of Spark Connect.
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        builder = DefaultChannelBuilder(f"{url};session_id={self.id}")
        names = NamesOfAll()
        # The outermost interceptor: gRPC treats an error of an inner interceptor as an answer of the server.
        builder.add_interceptor(Guard(url))
        builder.add_interceptor(names)
        spark: Any = ConnectSession.builder.channelBuilder(builder).create()
        self._watch = Watch(spark, on_silence=on_silence)
        spark.client.set_retry_policies([DefaultPolicy(max_retries=MAX_RETRIES)])
        names.catalog_of(spark)
        self.spark: SparkSession = spark
        try:
            self.version = spark.version
        except BaseException:
            self.close()
            raise

    def keep_apart(self) -> None:
        """From now on, mark the frames that this process caches as this attempt's alone.

        Spark answers a plan from its cache when an equal plan was cached in any session. A marked plan equals no other:
        it has a filter that is always true, which Spark drops when it runs the plan.
        """
        from pyspark.sql import functions as F
        from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame

        persist, mark, kept = ConnectFrame.persist, self.id, self._kept

        def persist_marked(frame: Any, *arguments: Any, **named: Any) -> Any:
            if not any(frame is other for other in kept):
                kept.append(frame)
                frame._plan = frame.where(F.lit(mark) == F.lit(mark))._plan
            return persist(frame, *arguments, **named)

        changed: Any = ConnectFrame
        changed.persist = persist_marked

    def drop_cached(self) -> None:
        """Free the server's memory: the server keeps the frames that a session cached beyond the session's end.

        :raises pyspark.errors.PySparkException: if the server does not answer.
        """
        for frame in self._kept:
            frame.unpersist()

    def close(self) -> None:
        """End the session; a server that is not told ends the session by itself after a while."""
        self._watch.end()


def end_session(
    url: str, *, session: str, user: str, tag: str, is_own: bool, sweep: bool, on_silence: Callable[[], None]
) -> int:
    """End an attempt's operations, and wait until they have ended.

    :param url: URL of the server, with the token.
    :param session: id of the attempt's session.
    :param user: the user who owns the session.
    :param tag: tag of the attempt's operations.
    :param is_own: whether the session is the attempt's alone, as are all that this version opens: the session is then
        closed, so that its client, on whatever host, starts nothing more.
    :param sweep: whether the attempt's process was killed before it dropped the frames that it had cached. Nothing
        tells which frames these are, so the caches of all attempts are dropped; Spark fills those of living attempts
        again when they are used.
    :param on_silence: see :class:`AttemptSession`.
    :return: how many operations were interrupted.
    :raises RuntimeError: if the operations did not end.
    """
    remote = RemoteSession(url, session=session, user=user)
    if not is_own:
        return remote.interrupt(tag)
    interrupted = remote.interrupt()
    remote.close()
    if sweep:
        sweeper = AttemptSession(url, on_silence=on_silence)
        sweeper.spark.catalog.clearCache()
        sweeper.close()
    return interrupted
