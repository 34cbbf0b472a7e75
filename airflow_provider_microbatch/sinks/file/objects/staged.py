"""The stages of a table in an object store: Spark writes an attempt's files where they stay, and a mark tells of them.
Tables whose readers go by manifests share it with those that have a log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.connections import Connect
from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError, SinkError
from airflow_provider_microbatch.runtime.access import ACCESS
from airflow_provider_microbatch.runtime.job import NOTHING as NO_REQUIREMENTS
from airflow_provider_microbatch.runtime.job import Requirements, Stage
from airflow_provider_microbatch.runtime.layout import ERROR, MANIFEST
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, OpenSink
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.file.objects.layout import FENCED, Written
from airflow_provider_microbatch.sinks.file.objects.stages import Stages
from airflow_provider_microbatch.sinks.file.report import (
    check_of_one_job,
    differing,
    error_of,
    is_data,
    manifest_from,
)
from airflow_provider_microbatch.stores.object_store import ObjectStore
from airflow_provider_microbatch.stores.object_store.address import Address
from airflow_provider_microbatch.stores.object_store.bucket import Bucket
from airflow_provider_microbatch.stores.object_store.conditional import ConditionalPuts
from airflow_provider_microbatch.stores.object_store.s3a import connector, settings_of

log = logging.getLogger(__name__)

_FENCE_TEXT = b"a later attempt has taken this one's place\n"


class StagedInObjects(OpenSink):
    """The operations of a table in an object store that end where its stage is whole.

    :param address: address of the table.
    :param connect: finds the table's connection, for Spark.
    :param packages: Maven coordinates of Hadoop's connector; None: the one of the installed PySpark.
    """

    layout: ClassVar[type[Written]] = Written
    """The table's layout: where attempts write."""

    def __init__(self, address: Address, *, connect: Connect, packages: Sequence[str] | None) -> None:
        self._address = address
        self._connect = connect
        self._packages = packages
        self._bucket = Bucket(address)
        self._store = ObjectStore(self._bucket, ConditionalPuts(self._bucket, address.prefix), folder=address.prefix)
        self._stages = Stages(self._store, self._bucket, self.layout)
        self._read: tuple[Written, Manifest] | None = None
        """The attempt whose manifest was read last: its job has written it last of all, and nobody changes it."""

    def check(self) -> None:
        with self._telling("be reached"):
            connector(self._packages)
            self.secrets()
            next(self._bucket.objects(self._address.prefix, page=1), None)

    def secrets(self) -> dict[str, str]:
        """The connection as settings of ``s3a``, for this bucket alone."""
        try:
            settings = settings_of(self._address.conn_id, self._address.bucket, self._connect)
        except DefinitionError as error:
            raise SinkError(f"the table {self.location()}: {error}") from error
        return {self._secret: json.dumps(settings)} if settings else {}

    def begin(self, batch: BatchIdentity, epoch: int) -> None:
        with self._telling("begin an attempt at", batch.key):
            self._stages.begin(self.layout.by(batch, epoch))

    def manifest(self, batch: BatchIdentity, epoch: int) -> Manifest | None:
        written = self.layout.by(batch, epoch)
        with self._telling("read the stage of", batch.key):
            return self._manifest(written) if self._stages.is_there(written) else None

    def failure(self, batch: BatchIdentity, epoch: int) -> Mapping[str, Any] | None:
        with self._telling("read the stage of", batch.key):
            return error_of(self._lines(f"{self.layout.by(batch, epoch).folder}/{ERROR}"))

    def fence(self, batch: BatchIdentity, epoch: int, *, by: str) -> None:
        mark = self.layout.by(batch, epoch).fence_mark
        with self._telling("fence an attempt of", batch.key):
            # The reason may come from a checkpoint that others can write: it goes to the log, and into no object.
            self._store.put_if_absent(mark, _FENCE_TEXT)
        log.info("%s/%s: %s", self.location(), mark, by)

    def drop_fences(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        with self._telling("remove old fences"):
            marks = self._old(self.layout.marks(FENCED, checkpoint), older_seconds)
            if not dry_run:
                self._store.delete_many(marks)
        return [f"{self.location()}/{mark}" for mark in marks]

    def _stage(self, written: Written, writer: str, arguments: Mapping[str, Any]) -> Stage:
        path = f"{self.location()}/{written.folder}"
        return Stage(
            writer=writer,
            arguments={"path": path, **arguments, ACCESS: self._access},
            report=path,
            reserved_columns=RESERVED_COLUMNS,
            fence=f"{self.location()}/{written.fence_mark}",
            requires=self._requires,
        )

    def _complete_stage(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        """The manifest of a stage that is whole and of this plan. From now on who removes the stage first makes sure
        that a publish which has begun is refused."""
        written = self.layout.by(batch.staged, epoch)
        where = f"{self.location()}/{written.folder}"
        own = self.manifest(batch.staged, epoch)
        if own is None or own.epoch != epoch:
            raise SinkError(f"batch {batch.key} attempt {epoch} has no complete stage at {where}. Run the batch again.")
        batch.check_stage(own, where=where)
        self._stages.claim(written)
        told = differing(self._data(written, own), own)
        if told is not None:
            raise SinkError(
                f"the stage {where} of batch {batch.key} attempt {epoch} is not what its job wrote ({told}). It was "
                "not published; run the batch again, as a new attempt."
            )
        check_of_one_job(own, where=where)
        return own

    def _data(self, written: Written, manifest: Manifest) -> Mapping[str, int]:
        """The files of an attempt that Spark has written as data, with their sizes."""
        found = self._stages.objects(written).items()
        return {path: size for path, size in found if all(map(is_data, path.split("/")))}

    def _manifest(self, written: Written) -> Manifest | None:
        if self._read is not None and self._read[0] == written:
            return self._read[1]
        folder = f"{written.folder}/{MANIFEST}"
        found = manifest_from(self._lines(folder), written.key, where=f"{self.location()}/{folder}")
        self._read = None if found is None else (written, found)
        return found

    def _lines(self, folder: str) -> Iterator[Any]:
        """Values of the JSON lines in the objects of a folder that Spark wrote."""
        for name in self._store.list_after(folder):
            data = self._store.get(f"{folder}/{name}") if name.startswith("part-") else None
            # A JSON text may contain characters that `str.splitlines` takes for the end of a line.
            yield from (json.loads(line) for line in (data or b"").decode("utf-8").split("\n") if line)

    def _old(self, folder: str, seconds: float) -> list[str]:
        """Objects below a folder that were written at least ``seconds`` ago."""
        top = f"{self._address.prefix}/"
        found = list(self._bucket.objects(f"{top}{folder}"))
        if not found:
            return []
        now_ms = self._store.now_ms()
        return [
            one["path"].removeprefix(top)
            for one in found
            if now_ms - one["last_modified"].timestamp() * 1000 >= seconds * 1000
        ]

    @property
    def _secret(self) -> str:
        return f"table {self.location()}"

    @property
    def _access(self) -> str | None:
        """Name of the secret by which Spark reaches the table; None if the environment's credentials do."""
        return self._secret if self._address.conn_id is not None else None

    @property
    def _requires(self) -> Requirements:
        """What Spark needs to reach the table."""
        try:
            return connector(self._packages)
        except DefinitionError:
            return NO_REQUIREMENTS  # a host without pyspark runs no job; `check` reports that pyspark is missing

    @contextmanager
    def _telling(self, doing: str, key: BatchKey | None = None) -> Iterator[None]:
        """Raise errors of the store as errors of the sink."""
        try:
            yield
        except (CheckpointError, DefinitionError) as error:
            what = f"{doing} batch {key}" if key is not None else doing
            raise SinkError(f"cannot {what} of the table {self.location()}: {error}") from error
