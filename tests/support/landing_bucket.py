"""A bucket in which objects land, for the suite that every source passes."""

from __future__ import annotations

import itertools
import json
import uuid
from contextlib import ExitStack
from pathlib import Path

from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.sources import Source
from airflow_provider_microbatch.sources.file import FileSource
from tests.support import object_store


class Objects:
    """Small JSON objects in a bucket of their own, at most two a batch."""

    keeps_a_log = True
    counts = True

    def __init__(self, root: Path, stack: ExitStack, *, ordered: bool = False) -> None:
        object_store.endpoint()
        self._s3 = object_store.client()
        self._bucket = f"landing-{uuid.uuid4().hex}"
        self._s3.create_bucket(Bucket=self._bucket)
        self._number = itertools.count()
        self.source: Source = FileSource(
            f"s3://{self._bucket}/landing", schema="id long", max_files=2, ordered=ordered, packages=[]
        )

    def arrive(self) -> None:
        number = next(self._number)
        self._s3.put_object(Bucket=self._bucket, Key=f"landing/{number:04}.json", Body=f'{{"id": {number}}}\n'.encode())

    def break_it(self) -> None:
        for one in self._s3.list_objects_v2(Bucket=self._bucket).get("Contents", []):
            self._s3.delete_object(Bucket=self._bucket, Key=one["Key"])
        self._s3.delete_bucket(Bucket=self._bucket)

    def rows(self, read: Read) -> list[int]:
        keys = [path.partition("://")[2].partition("/")[2] for g in read.arguments["groups"] for path in g["paths"]]
        return [json.loads(self._s3.get_object(Bucket=self._bucket, Key=key)["Body"].read())["id"] for key in keys]
