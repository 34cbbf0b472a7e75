"""The fence as Spark's side sees it: a file beside the stage. Spark's own file system looks for the file, or this
process does where it sees the stage as Spark's driver does.

Publish decides between attempts without this file. The file only makes a zombie end early: a driver that is out of
reach, on another host or behind a broken network, stops burning the cluster and refilling a stage that was dropped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.hadoop_files import seen_in_bucket
from airflow_provider_microbatch.runtime.report import NONE
from airflow_provider_microbatch.runtime.session import path_beside_driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("microbatch")

POLL_SECONDS = 5.0
"""How long a fenced attempt runs on at most. A look costs a file status and no job; with Spark Connect it takes 30
ms."""


class FencedFailure(BatchFailure):
    """A later attempt has fenced this attempt, so nothing that this attempt would write counts, not even its error
    report."""

    def __init__(self, path: str | None) -> None:
        super().__init__("runtime", f"a later attempt has taken its place, as {path} says")


class Fence:
    """One attempt's fence.

    :param spark: the session of the attempt.
    :param path: the file that fences the attempt, in Spark's form; None if nothing ever fences it.
    :param options: the options with which Spark reaches the file.
    """

    def __init__(self, spark: SparkSession, path: str | None, *, options: Mapping[str, str] = NONE) -> None:
        self._spark = spark
        self._path = path
        self._options = dict(options)
        self._fenced = False

    def check(self) -> None:
        """Check that no later attempt has fenced this attempt.

        :raises FencedFailure: if the file exists.
        """
        if self._look():
            raise FencedFailure(self._path)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look for the file periodically while the block runs; interrupt the block's Spark jobs when the file appears.

        :raises FencedFailure: in place of any error that the interrupted block raised.
        """
        if self._path is None:
            yield
            return
        tag = f"microbatch-fence-{id(self)}"
        done = threading.Event()
        # The opener of a Connect session may use it for other work, so only this attempt's own operations may be
        # stopped. Classic Spark keeps tags by thread, so interrupting by tag would stop nothing, but its driver belongs
        # to this attempt.
        shared = type(self._spark).__module__.startswith("pyspark.sql.connect")
        interrupt = partial(self._spark.interruptTag, tag) if shared else self._spark.interruptAll

        def watch() -> None:
            while not done.wait(POLL_SECONDS):
                if self._look():
                    log.error("this attempt is fenced by %s: stopping its Spark jobs", self._path)
                    # Interrupt again until the block ends: the block may be between two jobs.
                    while not done.wait(0.2):
                        interrupt()

        watcher = threading.Thread(target=watch, name="microbatch-fence", daemon=True)
        self._spark.addTag(tag)
        watcher.start()
        try:
            yield
        except BaseException:
            if self._fenced:
                raise FencedFailure(self._path) from None
            raise
        finally:
            done.set()
            watcher.join()
            self._spark.removeTag(tag)

    def _look(self) -> bool:
        from pyspark.errors import PySparkException

        if self._path is not None and not self._fenced:
            here = path_beside_driver(self._spark, self._path)
            if here is not None:
                with suppress(OSError):
                    self._fenced = here.exists()
                return self._fenced
            in_bucket = seen_in_bucket(self._spark, self._path, options=self._options)
            if in_bucket is not None:
                self._fenced = in_bucket
                return self._fenced
            try:
                # Resolving the table looks for the file. Reading it would be a job, which waits for a free core, and
                # this attempt may hold all cores. The path is given twice: for a single path Spark also looks whether a
                # streaming query has written it, and logs a stack trace if the path is missing, at each look of a
                # healthy task.
                reader = self._spark.read.options(**self._options)
                self._fenced = bool(reader.text([self._path, self._path]).columns)
            except PySparkException as error:
                # The file is missing, or Spark cannot look for it; publish decides then.
                log.debug("no fence at %s: %s", self._path, error)
        return self._fenced
