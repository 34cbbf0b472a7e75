"""Reads the planned rows of a database's table by Spark's JDBC source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.files import ReadResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NONE = "1 = 0"


def read(spark: SparkSession, arguments: Mapping[str, Any]) -> ReadResult:
    """Read one range.

    :param arguments: ``url``, ``driver`` (its class; a job of an older version has none), ``user``, ``options`` of the
        driver, ``password_setting`` (name of the session's setting that has the password; a missing setting is no
        error, since the driver may find a password by itself), ``table`` (quoted), ``texts`` (columns to read as
        texts), ``predicates`` (one for each Spark partition), and ``told`` (handed back unchanged).
    """
    properties = {**arguments["options"], "driver": arguments.get("driver", "org.postgresql.Driver")}
    if arguments["user"]:
        properties["user"] = arguments["user"]
    password = spark.conf.get(arguments["password_setting"], None)
    if password:
        properties["password"] = password
    if arguments.get("texts"):
        names = ("`" + name.replace("`", "``") + "`" for name in arguments["texts"])
        properties["customSchema"] = ", ".join(f"{name} STRING" for name in names)
    # Without predicates Spark would read the whole table.
    predicates = list(arguments["predicates"]) or [_NONE]
    frame = spark.read.jdbc(arguments["url"], arguments["table"], predicates=predicates, properties=properties)
    return ReadResult(frame=frame, columns=tuple(frame.columns), told=arguments["told"])
