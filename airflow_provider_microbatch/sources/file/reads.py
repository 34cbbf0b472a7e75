"""Describes to the runtime how to read planned files: a range as a whole, or split by split."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from airflow_provider_microbatch.runtime.files import literally
from airflow_provider_microbatch.runtime.job import Read, Requirements
from airflow_provider_microbatch.runtime.streaming_job import Stream
from airflow_provider_microbatch.sources import Split
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.learned import PARTITIONS, SCHEMA, Learned
from airflow_provider_microbatch.sources.file.log import PlannedFile, offset_of
from airflow_provider_microbatch.sources.file.path import is_object, to_url
from airflow_provider_microbatch.sources.file.place import Place
from airflow_provider_microbatch.sources.file.present import Located, as_found, partition_groups

_READER = "airflow_provider_microbatch.runtime.files:read"
_STREAM = "airflow_provider_microbatch.runtime.files:stream"
_JOINS = "airflow_provider_microbatch.runtime.files:joined"


class FileReads:
    """Makes the reads of one file source.

    :param source: the source.
    :param place: place of its files.
    :param name: its name in the pipeline.
    :param learned: the learned facts about its columns.
    """

    def __init__(self, source: FileSource, place: Place, *, name: str, learned: Learned) -> None:
        self._source = source
        self._place = place
        self._name = name
        self._learned = learned

    @property
    def knows_schema(self) -> bool:
        """Whether the columns are given, or have been inferred from earlier files."""
        return self._source.schema is not None or self._learned.get(SCHEMA) is not None

    def of(self, files: Sequence[Located], *, left_out: Sequence[str] = ()) -> Read:
        """Return one read of all these files, grouped by their partition columns.

        :param left_out: paths of planned files that are gone.
        """
        schema = self._source.schema
        return Read(
            reader=_READER,
            joins=_JOINS,
            arguments={
                "name": self._name,
                "format": self._source.format,
                "schema": schema,
                "schema_json": None if schema is not None else self._learned.get(SCHEMA),
                "partitions_json": self._learned.get(PARTITIONS),
                "options": dict(self._source.options),
                "groups": self._groups(files),
                "left_out": list(left_out),
                "secrets": self._secret_names,
                "as_found": as_found(files),
            },
            requires=self._requires,
        )

    # The connection is not looked up for each of a thousand splits; its values are looked up for each attempt.
    @cached_property
    def _secret_names(self) -> list[str]:
        return sorted(self._place.secrets())

    @cached_property
    def _requires(self) -> Requirements:
        return self._place.requires()

    @property
    def may_be_streamed(self) -> bool:
        """Whether Spark's own source finds all files, and has credentials for them: it looks in one place only, and not
        in an archive."""
        return self._source.clean_source is None and not is_object(self._source.path)

    def stream(self, files: Sequence[Located], *, path: str, begins: bool, left_out: Sequence[str]) -> Stream | None:
        """Return the files as a stream reads them, where they :attr:`may_be_streamed`; None if one has a character of a
        glob in its path. Spark's own source takes such a path for a glob again, and reads other files with it: each
        file of the batch once more for each such path.

        The log that Spark gets has everything before the range as one entry that names no file, however long the
        history is: a query that runs one batch needs no more.

        :param path: the path that the source lists.
        :param begins: no file was read before.
        """
        read = self.of(files, left_out=left_out)
        number = 0 if begins else 1
        there = [one.path for one in files if one.path is not None]
        if any(literally(one) != one for one in there):
            return None
        lines = [
            json.dumps({"path": to_url(one), "timestamp": 0, "batchId": number}, separators=(",", ":")) for one in there
        ]
        log = {str(number): "\n".join(["v1", *lines])} if lines else {}
        if not begins:
            log["0"] = "v1"
        return Stream(
            reader=_STREAM,
            arguments={key: read.arguments[key] for key in ("name", "format", "schema", "options")} | {"path": path},
            start=None if begins else offset_of(0),
            end=offset_of(number if lines else number - 1),
            log=log,
            told={"files": len(there), "left_out": list(left_out)},
        )

    def splits(self, files: Sequence[Located], *, left_out: Sequence[str]) -> list[Split]:
        """Return a split for each file, and one for the files that are gone.

        Returns a single split as long as the columns have to be inferred, or come from folders of several kinds: if the
        files were read one by one, each would yield columns of its own.
        """
        splits = [Split(id=_id(one.planned), read=self.of([one])) for one in files]
        if left_out:
            splits.append(Split(id="left out", read=self.of([], left_out=left_out)))
        if len(splits) < 2 or not self.knows_schema or not self._knows_partitions(files):
            return [Split(id="all", read=self.of(files, left_out=left_out))]
        return splits

    def _knows_partitions(self, files: Sequence[Located]) -> bool:
        return self._learned.get(PARTITIONS) is not None or len(self._groups(files)) < 2

    def _groups(self, files: Sequence[Located]) -> list[dict[str, Any]]:
        return partition_groups(files, partitioned=not self._source.recursive)


def _id(file: PlannedFile) -> str:
    """The place of the file in the source log: its path may appear again in a later entry, as another file."""
    return f"{file.log_id} {file.path}"
