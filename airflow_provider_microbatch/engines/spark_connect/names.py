"""Refuses names on a Spark Connect server that all its sessions share: an attempt makes none.

A global temporary view, a cache by name, and a table of a catalog that lives in the server's memory belong to no
session: the next attempt, even of another pipeline, would read them, and two attempts at once would replace each
other's. No attempt needs them: temporary views and frames are the attempt's own. The client refuses such names before
the server gets the request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import grpc  # type: ignore[import-untyped,unused-ignore]

_INSTEAD = (
    "All attempts on this Spark Connect server share it, of other pipelines too, and it would outlive this one. Use {}."
)
_VIEW = "a temporary view (createOrReplaceTempView), which is this attempt's own"
_FRAME = "cache() of a frame, and make a temporary view of that frame if you need a name"
_TABLE = f"{_VIEW}, or a server whose session catalog is a metastore (spark.sql.catalogImplementation=hive)"

_QUOTED = r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\""
_COMMENT = re.compile(rf"({_QUOTED})|--[^\n]*|/\*.*?\*/", re.DOTALL)
_NAME = r"((?:`(?:[^`]|``)+`|\w+)(?:\s*\.\s*(?:`(?:[^`]|``)+`|\w+))*)"
_PART = re.compile(r"`((?:[^`]|``)+)`|(\w+)")
_GLOBAL = re.compile(r"\bCREATE\s+(?:OR\s+REPLACE\s+)?GLOBAL\s+TEMP", re.IGNORECASE)
_CACHE = re.compile(r"\bCACHE\s+(?:LAZY\s+)?TABLE\b", re.IGNORECASE)
_CREATE = re.compile(
    r"\b(?:CREATE\s+(?:OR\s+REPLACE\s+)?|REPLACE\s+)(?:EXTERNAL\s+)?(TABLE|VIEW|FUNCTION|DATABASE|SCHEMA|NAMESPACE)\s+"
    rf"(?:IF\s+NOT\s+EXISTS\s+)?{_NAME}",
    re.IGNORECASE,
)
_PROGRAM = re.compile(r"(?:BEGIN|EXECUTE\s+IMMEDIATE)\b", re.IGNORECASE)


class SharedNameError(Exception):
    """The transform would make a name that all attempts on the server share."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(f"{what} is refused. {_INSTEAD.format(instead)}")


class NamesOfAll(grpc.UnaryStreamClientInterceptor, grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc,unused-ignore]
    """Checks each request of a session before it is sent."""

    def __init__(self) -> None:
        self._spark: Any = None

    def catalog_of(self, spark: Any) -> None:
        """:param spark: the session, which is asked for its catalog when a table is about to be made."""
        self._spark = spark

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Pass the call on, by gRPC's interface for interceptors."""
        return continuation(details, request)

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        """Check the request, then pass the call on. The call in the transform raises the error of a refused request."""
        plan = getattr(request, "plan", None)
        if plan is not None:
            self._check(_plain(plan))
        return continuation(details, request)

    def _check(self, plan: Any) -> None:
        kind = plan.WhichOneof("op_type")
        if kind == "root" and plan.root.WhichOneof("rel_type") == "catalog":
            self._check_catalog(plan.root.catalog)
        elif kind == "root" and plan.root.WhichOneof("rel_type") == "sql":
            self._check_sql(plan.root.sql.query)
        elif kind == "command":
            self._check_command(plan.command)

    def _check_command(self, command: Any) -> None:
        kind = command.WhichOneof("command_type")
        if kind == "sql_command":
            given = command.sql_command.input
            # The command carries the frames that the statement names by {…}.
            query = given.with_relations.root.sql if given.WhichOneof("rel_type") == "with_relations" else given.sql
            self._check_sql(query.query or command.sql_command.sql)
        elif kind == "create_dataframe_view" and command.create_dataframe_view.is_global:
            raise SharedNameError(f"the global temporary view {command.create_dataframe_view.name!r}", _VIEW)
        elif kind == "write_operation" and command.write_operation.HasField("table"):
            self._check_table(command.write_operation.table.table_name)
        elif kind == "write_operation_v2":
            self._check_table(command.write_operation_v2.table_name)

    def _check_catalog(self, catalog: Any) -> None:
        kind = catalog.WhichOneof("cat_type")
        if kind == "cache_table":
            raise SharedNameError(f"the cache of table {catalog.cache_table.table_name!r}", _FRAME)
        if kind in ("create_table", "create_external_table"):
            self._check_table(getattr(catalog, kind).table_name)

    def _check_sql(self, query: str) -> None:
        text = _COMMENT.sub(lambda found: found.group(1) or " ", query).strip()
        # A script or dynamic statement has its statements further on, or in a text; others begin with a verb.
        find = "search" if _PROGRAM.match(text) else "match"
        if getattr(_GLOBAL, find)(text):
            raise SharedNameError("a global temporary view", _VIEW)
        if getattr(_CACHE, find)(text):
            raise SharedNameError("CACHE TABLE", _FRAME)
        if created := getattr(_CREATE, find)(text):
            self._check_table(created.group(2), what=created.group(1).lower())

    def _check_table(self, name: str, *, what: str = "table") -> None:
        parts = list(_parts(name))
        conf = self._spark.conf
        if len(parts) > 1 and conf.get(f"spark.sql.catalog.{parts[0]}", None) is not None:
            return  # a catalog of its own, which is no part of the server
        if parts[0] != "spark_catalog" and self._spark.catalog.currentCatalog() != "spark_catalog":
            return
        if conf.get("spark.sql.catalogImplementation", "in-memory") == "in-memory":
            raise SharedNameError(f"the {what} {name!r} in the catalog in the server's memory", _TABLE)


def _parts(name: str) -> Iterator[str]:
    for quoted, plain in _PART.findall(name):
        yield quoted.replace("``", "`") or plain


def _plain(plan: Any) -> Any:
    """The plan, unpacked if PySpark has packed it because it is large."""
    if plan.WhichOneof("op_type") != "compressed_operation":
        return plan
    import zstandard  # type: ignore[import-not-found,unused-ignore]
    from pyspark.sql.connect.proto import base_pb2 as proto

    packed = plan.compressed_operation
    data = zstandard.ZstdDecompressor().decompressobj().decompress(packed.data)
    unpacked: Any = proto.Plan()
    is_command = packed.op_type == proto.Plan.CompressedOperation.OP_TYPE_COMMAND
    (unpacked.command if is_command else unpacked.root).ParseFromString(data)
    return unpacked
