"""The session of one attempt on a Spark Connect server: nobody else has been in it, and nobody comes after.

A session of its own keeps apart what a server keeps by session: analysed plans, temporary views, settings, functions,
files. What a server keeps for everybody is kept apart here: a frame that is cached is marked, so that no plan of
another attempt is answered by it; and names that all would see are refused (see :mod:`.names`).
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
"""Of a call to a server that does not answer: after 50 ms, then four times as long each; 17 s in all. PySpark's own 15
are ten minutes, in which a task would wait for a server that has died."""


class AttemptSession:
    """A new session, open when this returns.

    :param url: of the server, with token and user.
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
        # As PySpark's own builder does: its functions then make expressions of Spark Connect.
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        builder = DefaultChannelBuilder(f"{url};session_id={self.id}")
        names = NamesOfAll()
        # The outermost: gRPC takes an error of an inner one for an answer of the server.
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
        """From now on what this process caches is for this attempt alone.

        Spark answers a plan from its cache when a plan that looks the same was cached, in whatever session. A marked
        plan looks like no other: its filter is always true, and Spark drops it when it runs the plan.
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
        """Give back the server's memory: it keeps what a session cached beyond the session's end.

        :raises pyspark.errors.PySparkException: if the server does not answer.
        """
        for frame in self._kept:
            frame.unpersist()

    def close(self) -> None:
        """End the session; the server does so by itself after a while, if it is not told."""
        self._watch.end()


def end_session(
    url: str, *, session: str, user: str, tag: str, is_own: bool, sweep: bool, on_silence: Callable[[], None]
) -> int:
    """End an attempt's operations, and wait until they have ended.

    :param url: of the server, with the token.
    :param session: the attempt's.
    :param user: whose session it is.
    :param tag: of the attempt's operations.
    :param is_own: the session is the attempt's alone, as all are that this version opens: it is closed, so that its
        client, wherever that is, starts nothing more.
    :param sweep: the attempt's process was killed before it gave back what it had cached. Nobody can tell which that
        is, so the caches of all attempts go; Spark fills those of living ones again when they are used.
    :param on_silence: see :class:`AttemptSession`.
    :return: how many operations were interrupted.
    :raises RuntimeError: if they would not end.
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
