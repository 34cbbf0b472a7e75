"""Files in a bucket, by the file system that the driver's own JVM has for them: what Spark would do by a job, which
costs seconds in a driver of one batch, is one request or two.

A Spark Connect session reaches no JVM. Nor is it used where a file is seen before all of it is there: a bucket of S3
shows an object once all of it was sent (``org.apache.hadoop.fs.FileSystem`` in ``hadoop-aws``'s documentation).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_WHOLE_OR_NOT_THERE = "s3a://"


class HadoopFiles:
    """A folder and what is below it.

    :param spark: a classic session.
    :param folder: an ``s3a:`` URL.
    :param options: as Spark's readers and writers take them to reach the folder.
    """

    def __init__(self, spark: SparkSession, folder: str, *, options: Mapping[str, str]) -> None:
        classic: Any = spark
        session = classic._jsparkSession
        conf = session.sessionState().newHadoopConf()
        for name, value in options.items():
            conf.set(name, value)
        self._path = classic._jvm.org.apache.hadoop.fs.Path
        self._folder = self._path(folder)
        self._system = self._folder.getFileSystem(conf)

    def exists(self) -> bool:
        """Whether there is anything at the address itself."""
        return bool(self._system.exists(self._folder))

    def below(self) -> Iterator[tuple[str, int]]:
        """Paths of all files, relative to the folder, with their bytes."""
        top = f"{self._system.makeQualified(self._folder).toString()}/"
        found = self._system.listFiles(self._folder, True)
        while found.hasNext():
            file = found.next()
            yield file.getPath().toString().removeprefix(top), file.getLen()

    def write_new(self, name: str, lines: Iterable[str]) -> None:
        """Write a file, which appears at once.

        :raises py4j.protocol.Py4JJavaError: if there is one of that name, or it cannot be written.
        """
        text = "".join(f"{line}\n" for line in lines)
        stream = self._system.create(self._path(self._folder, name), False)
        stream.write(text.encode("utf-8"))
        stream.close()  # not if the write has failed: `close` sends what there is


def files_in_bucket(spark: SparkSession, folder: str, *, options: Mapping[str, str]) -> HadoopFiles | None:
    """The files of a folder, if this process reaches them without a job of Spark; None otherwise."""
    if not folder.startswith(_WHOLE_OR_NOT_THERE) or type(spark).__module__.startswith("pyspark.sql.connect"):
        return None
    return HadoopFiles(spark, folder, options=options)


def seen_in_bucket(spark: SparkSession, address: str, *, options: Mapping[str, str]) -> bool | None:
    """Whether there is anything at the address; False also where the bucket does not answer, or cannot be reached. None
    if this process does not reach files there without a job of Spark."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        bucket = files_in_bucket(spark, address, options=options)
        return None if bucket is None else bucket.exists()
    except Py4JError as error:
        log.debug("no look at %s: %s", address, error)
        return False
