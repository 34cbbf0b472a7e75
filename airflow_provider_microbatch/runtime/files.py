"""Reads exactly the planned files. Runs where Spark runs: Spark Connect's API only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.secrets import secret

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_GLOB_CHARACTERS = re.compile(r"[\\*?\[\]{}]")
_PARTITION_VALUE = re.compile(
    r"INVALID_PARTITION_VALUE.*?value '(?P<value>.*?)' to data type \"(?P<type>.*?)\" "
    r"for partition column `(?P<column>.*?)`",
    re.DOTALL,
)
FILE = "_metadata.file_path"
"""Spark's hidden column with the file that a row was read from."""
NO_LISTING_JOB = str(2**31 - 1)


@dataclass(frozen=True, kw_only=True)
class ReadResult:
    """The result of a reader.

    :param frame: the range's rows.
    :param learned: JSON values for the source's planning half, such as an inferred schema; the planning half pins them.
    :param told: JSON values for the source's planning half about what was read, to compare with the plan.
    :param columns: columns of which a row that fits the schema has at least one value. Rows without any are counted.
    :param ended: called once the stage is written; returns values to add to ``told``, such as the end that was reached
        in a range without a planned end.
    :param absent: why a transform gets no frame for the range, for people: the range is empty, and no schema is known.
    :param refused: a column of the frame that holds the text of rows that do not parse, and is null in all other rows.
        Set only where dead letters are kept: these rows go there, and the transform gets neither rows nor column.
    :param place: a SQL expression for the place of a row, such as its file; empty if there is none.
    """

    frame: DataFrame
    learned: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    ended: Callable[[], Mapping[str, Any]] | None = None
    absent: str | None = None
    refused: str = ""
    place: str = ""


@contextmanager
def _naming_ways_on(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Add the ways out to Spark's error about a folder's value that does not fit its column: Spark names the value
    alone."""
    try:
        yield
    except Exception as error:
        told = _PARTITION_VALUE.search(str(error))
        if told is None:
            raise
        column = told["column"]
        raise ValueError(
            f"source {arguments['name']!r}: the folder '{column}={told['value']}' does not fit column {column!r}, "
            f"which is of type {told['type']}. Give the column a type that fits all its folders "
            f"(FileSource(…, schema='…, {column} string')), and run the batch again. Or move the folder out of the "
            "source (with on_missing='skip' the batch goes on without its files), and land them anew in one that fits, "
            f"such as '{column}=__HIVE_DEFAULT_PARTITION__' for null."
        ) from error


def read(spark: SparkSession, arguments: Mapping[str, Any]) -> ReadResult:
    """Read the files of one range of a file source.

    :param spark: the session.
    :param arguments: ``name``, ``format``, ``schema`` (DDL) or ``schema_json`` (pinned) or neither (inferred),
        ``partitions_json`` (partition columns beyond the schema, pinned), ``options``, ``groups`` (each with ``paths``
        and ``base_path``, one set of partition columns a group), ``secrets`` (names of Hadoop's settings that are
        secrets), ``left_out`` (planned files that were gone), ``as_found`` (files that have changed since the plan, as
        they were found: path, size, mtime and, of an object, ETag) and ``keeps_refused`` (whether rows that do not
        parse are told).
    :return: the rows; columns are in the schema's order, followed by partition columns that the schema does not name.
        ``learned`` has ``schema`` or ``partitions`` if they were not known before and a file was read. Files that hold
        nothing teach no schema: a schema inferred without any column of the files' own would drop all columns from
        every later batch.
    :raises ValueError: naming the source, for a schema that does not parse, for new partition columns, for rows of
        which no column can be inferred, or for a folder whose value does not fit its column.
    """
    with _naming_ways_on(arguments):
        return _read(spark, arguments)


def _read(spark: SparkSession, arguments: Mapping[str, Any]) -> ReadResult:
    declared = _declared(arguments)
    pinned = _struct(arguments.get("partitions_json"))
    known = None if declared is None else _with_fields(declared, pinned)
    refused = _corrupt_column(arguments) if arguments.get("keeps_refused") else ""
    asked = known if known is None or not refused else _with_text(known, refused)
    frame: DataFrame | None = None
    for group in arguments["groups"]:
        part = _read_group(spark, arguments, group, asked)
        frame = part if frame is None else frame.unionByName(part, allowMissingColumns=True)
    if frame is None:
        if known is None:
            raise ValueError(f"source {arguments['name']!r}: no file to read and no schema. Give it a schema.")
        return ReadResult(frame=spark.createDataFrame([], known), told=told(arguments), place=FILE)
    if known is None or declared is None:
        if _own_columns(arguments, frame.columns) or _hold_a_column(spark, arguments):
            return ReadResult(frame=frame, learned={"schema": frame.schema.json()}, told=told(arguments))
        count = told(arguments)["files"]
        absent = (
            f"its {count} file(s) hold neither a column nor a row, and no schema is known yet: a later batch infers it."
        )
        return ReadResult(frame=frame, told=told(arguments), absent=absent)
    found = frame.schema
    added = [column for column in found.fields if column.name not in {*known.fieldNames(), refused}]
    if added and pinned is not None:
        names = ", ".join(column.name for column in added)
        raise ValueError(
            f"source {arguments['name']!r}: partition column(s) {names} appeared that earlier batches did not have. "
            "Name them in the source's schema."
        )
    learned = {"partitions": type(found)(added).json()} if added else {}
    own = [*known.fieldNames(), *(column.name for column in added)]
    ordered = _ordered(frame, own if not refused or refused in own else [*own, refused])
    columns = _filled(arguments, known)
    return ReadResult(
        frame=ordered, learned=learned, told=told(arguments), columns=columns, refused=refused, place=FILE
    )


def stream(spark: SparkSession, arguments: Mapping[str, Any]) -> DataFrame:
    """The files of a source as a stream. The query's checkpoint holds which files a batch reads.

    :param arguments: those of :func:`read`, and ``path`` (the folder that the source lists) and ``tag`` (options that
        name the source).
    """
    schema = _declared(arguments)
    assert schema is not None, "a stream of files has the schema that its pipeline was checked for"
    reader = spark.readStream.format(arguments["format"]).schema(schema)
    for key, value in {**arguments["options"], **arguments["tag"]}.items():
        reader = reader.option(key, value)
    # As in a read, Spark must not skip a missing or torn file silently.
    reader = reader.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")
    return reader.load("file://" + literally(arguments["path"]))


def _hold_a_column(spark: SparkSession, arguments: Mapping[str, Any]) -> bool:
    """Whether the files themselves hold a column, when the columns of their folders are disregarded; False if the files
    are empty.

    :raises ValueError: if the files hold rows from which no column can be inferred.
    """
    paths = [path for group in arguments["groups"] for path in group["paths"]]
    without_folders = {"paths": paths, "base_path": None}
    frame = _read_group(spark, arguments, without_folders, None)
    if _own_columns({**arguments, "groups": [without_folders]}, frame.columns):
        return True
    if frame.limit(1).count():
        raise ValueError(
            f"source {arguments['name']!r}: {len(paths)} file(s) hold rows and no column that can be inferred (such as "
            f"{{}}, or what is no {arguments['format']}): {', '.join(map(repr, paths[:5]))}. Mend them, or give the "
            "source a schema: FileSource(…, schema='id long, …')."
        )
    return False


def _filled(arguments: Mapping[str, Any], schema: StructType) -> tuple[str, ...]:
    """The columns that come out of a file. Spark silently reads a value as null if it does not fit the schema, or if
    the file names its column differently or lacks the column."""
    return _own_columns(arguments, schema.fieldNames())


def _own_columns(arguments: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    """The names that are neither columns of the folders nor the column in which Spark puts text that did not fit."""
    other = {_corrupt_column(arguments)}
    for group in arguments["groups"]:
        if group["base_path"] is not None:
            parts = (part for path in group["paths"][:1] for part in path.removeprefix(group["base_path"]).split("/"))
            other.update(part.partition("=")[0] for part in parts if "=" in part)
    lowered = {name.lower() for name in other}
    return tuple(name for name in names if name.lower() not in lowered)


def _corrupt_column(arguments: Mapping[str, Any]) -> str:
    """The column in which Spark puts the text of a row that does not fit the schema, if the schema has that column."""
    given = {key.lower(): value for key, value in arguments["options"].items()}
    return str(given.get("columnnameofcorruptrecord", "_corrupt_record"))


def _with_text(schema: StructType, column: str) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return _with_fields(schema, StructType([StructField(column, StringType())]))


def told(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The values for the planning half after a successful read with these arguments: Spark reads each file whole, or
    fails."""
    files = sum(len(group["paths"]) for group in arguments["groups"])
    as_found = [list(one) for one in arguments.get("as_found", ())]
    return {"files": files, "left_out": list(arguments.get("left_out", ())), "as_found": as_found}


def joined(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The values that a read of a whole range would have told, made of the values that the reads of its splits told."""
    return {
        "files": sum(one["files"] for one in told),
        "left_out": [path for one in told for path in one["left_out"]],
        "as_found": sorted(found for one in told for found in one.get("as_found", ())),
    }


def _read_group(
    spark: SparkSession, arguments: Mapping[str, Any], group: Mapping[str, Any], schema: StructType | None
) -> DataFrame:
    # A threshold below the number of paths makes Spark start a job only to list files that are already known.
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", NO_LISTING_JOB)
    reader = spark.read.format(arguments["format"])
    if schema is not None:
        reader = reader.schema(schema)
    for key, value in arguments["options"].items():
        reader = reader.option(key, value)
    if arguments.get("keeps_refused"):
        # Name the column, since a session may be set to another one. Without column pruning, all columns of a row
        # decide whether it is refused, whichever are selected.
        reader = reader.option("columnNameOfCorruptRecord", _corrupt_column(arguments)).option("mode", "PERMISSIVE")
        reader = reader.option("columnPruning", "false")
    # A file that disappears during the read fails the attempt, and the next attempt plans without the file or reads it
    # in the archive. Otherwise Spark could skip the file silently, depending on the session's settings.
    reader = reader.option("ignoreMissingFiles", "false")
    # Likewise for a file that cannot be read whole: the batch would be committed with a part of its rows.
    reader = reader.option("ignoreCorruptFiles", "false")
    if group["base_path"] is None:
        reader = reader.option("recursiveFileLookup", "true")
    else:
        reader = reader.option("basePath", _url(group["base_path"]))
    for setting in arguments.get("secrets", ()):
        # As an option of this reader alone, the secret reaches Hadoop's file system, and no setting of the session
        # shows it.
        reader = reader.option(setting, secret(f"{arguments['name']}/{setting}"))
    return reader.load([_url(literally(path)) for path in group["paths"]])


def _url(path: str) -> str:
    """A path as Spark is given it: a local path is not looked for on the session's default file system."""
    return path if "://" in path else "file://" + path


def literally(path: str) -> str:
    """The path with the characters of Hadoop's globs escaped: without escapes the name ``a*.json`` would read
    ``ab.json`` too.

    Spark Connect loses Spark's own option for this, ``__globPaths__``, since it lower-cases option names.
    """
    return _GLOB_CHARACTERS.sub(r"\\\g<0>", path)


def _declared(arguments: Mapping[str, Any]) -> StructType | None:
    if arguments.get("schema") is None:
        return _struct(arguments.get("schema_json"))
    from pyspark.sql.types import StructType

    try:
        declared = StructType.fromDDL(arguments["schema"])
        if not isinstance(declared, StructType):
            raise TypeError(f"it is the type {declared.simpleString()}, not a list of columns with their types")
    except Exception as error:
        raise ValueError(
            f"source {arguments['name']!r}: schema {arguments['schema']!r} cannot be understood: {error}"
        ) from error
    return declared


def _struct(text: str | None) -> StructType | None:
    from pyspark.sql.types import StructType

    return None if text is None else StructType.fromJson(json.loads(text))


def _with_fields(schema: StructType, more: StructType | None) -> StructType:
    from pyspark.sql.types import StructType

    names = set(schema.fieldNames())
    return StructType([*schema.fields, *(extra for extra in (more or StructType()).fields if extra.name not in names)])


def _ordered(frame: DataFrame, names: list[str]) -> DataFrame:
    """The frame with its columns in this order: Spark moves partition columns to the end, in batches that have them."""
    if frame.columns == names:
        return frame
    return frame.select(*("`" + name.replace("`", "``") + "`" for name in names))
