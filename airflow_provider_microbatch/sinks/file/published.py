"""The files that a ``FileSink`` has published, for programs that read them without this package's help; and a dataset
of Arrow's over these files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import TABLE_BATCHES
from airflow_provider_microbatch.connections import Connect, connect
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.registry import DISTRIBUTION
from airflow_provider_microbatch.runtime.object_table import format_of
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file.arguments import address_of, is_object
from airflow_provider_microbatch.sinks.file.report import read_manifest
from airflow_provider_microbatch.stores.object_store.credentials import ENDPOINTS
from airflow_provider_microbatch.stores.object_store.s3a import s3a_settings

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset


@dataclass(frozen=True, order=True)
class PublishedFile:
    """A file of a batch.

    :param key: the batch.
    :param address: ``s3://bucket/key``, or ``file://`` and an absolute path.
    """

    key: BatchKey
    address: str


def published_files(path: str, *, lane: str | None = None, connect: Connect = connect) -> Iterator[PublishedFile]:
    """Files of the batches that are in a table now, batch by batch: for each batch all files or none.

    :param path: path of the table, as in its ``FileSink``.
    :param lane: only files of this lane.
    :param connect: finds the connection in the path.
    :raises SinkError: if the table cannot be read.
    :raises DefinitionError: if the path cannot be a table's.
    """
    sink = FileSink(path)
    if is_object(path):
        from airflow_provider_microbatch.sinks.file.objects import OpenObjectTable

        table = OpenObjectTable(sink, address_of(path), connect=connect)
        yield from (PublishedFile(key, address) for key, address in table.published(lane))
        return
    sink.open(SinkContext(connect=connect)).check()
    for name in sink.published_lanes() if lane is None else [lane]:
        for number in sink.published_ids(name):
            key, folder = BatchKey(name, number), sink.root / f"lane={name}" / f"batch_id={number}"
            found = read_manifest(folder, key)
            if found is None:
                raise SinkError(f"{folder} has no manifest: this package did not publish it. Move it away.")
            yield from (PublishedFile(key, f"file://{folder}/{file}") for file in sorted(found.files))


def open_dataset(path: str, *, format: str | None = None, schema: Any = None, connect: Connect = connect) -> Dataset:
    """A dataset of Arrow's over the files of the batches that are in a table in a bucket now, with the columns ``lane``
    and ``batch_id``.

    :param path: path of the table, as in its ``FileSink``: ``s3://conn_id@bucket/folder``.
    :param format: format of the files; None: according to their names.
    :param schema: Arrow schema, without the two columns; None: that of the first file.
    :param connect: finds the connection in the path.
    :raises SinkError: if nothing is published and no schema is given; if Arrow is not installed.
    """
    try:
        import pyarrow as pa
        from pyarrow import dataset
    except ImportError as error:
        raise SinkError(f"pyarrow is not installed ({error}). Run: pip install '{DISTRIBUTION}[delta]'") from error
    address = address_of(path)
    keys = [one.address.removeprefix("s3://") for one in published_files(path, connect=connect)]
    if not keys and schema is None:
        raise SinkError(f"nothing is published in {address}: give the schema of its files.")
    folders = pa.schema([("lane", pa.string()), ("batch_id", pa.int64())])
    if schema is not None:
        schema = pa.schema([*schema, *folders])
    return dataset.dataset(
        sorted(keys),
        filesystem=_file_system(address.conn_id, connect),
        format=format or (format_of(keys[0]) if keys else "parquet"),
        schema=schema,
        partitioning=dataset.partitioning(folders, flavor="hive"),
        partition_base_dir=f"{address.place}/{TABLE_BATCHES}",
    )


def _file_system(conn_id: str | None, connect: Connect) -> Any:
    from pyarrow.fs import S3FileSystem

    if conn_id is None:
        endpoint = next(filter(None, map(os.environ.get, ENDPOINTS)), None)
        return S3FileSystem(**_reaching(endpoint))
    settings = s3a_settings(connect(conn_id))
    return S3FileSystem(
        access_key=settings.get("access.key"),
        secret_key=settings.get("secret.key"),
        session_token=settings.get("session.token"),
        region=settings.get("endpoint.region"),
        **_reaching(settings.get("endpoint")),
    )


def _reaching(endpoint: str | None) -> dict[str, Any]:
    if endpoint is None:
        return {}
    scheme, _, place = endpoint.rpartition("://")
    return {"endpoint_override": place, "scheme": scheme or "https"}
