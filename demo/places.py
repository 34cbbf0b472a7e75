"""Where the demo's data lie: in folders, or all of it in a bucket. Who proves asks neither Airflow nor the package."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from demo.orders import Till
from demo.proof import Proof, Row, lake_rows, landed_rows, no_stage_left, row_of, utc

BUCKET = "company-lake"
ROOT = Path(__file__).resolve().parent.parent


class Place(Protocol):
    """What a run of the demo needs of it."""

    dag_id: str
    checkpoint: str
    till: Till

    def landed(self) -> list[Row]:
        """Every row that has landed."""

    def lake(self) -> list[Row]:
        """Every row that a reader of the table sees."""

    def no_stage_left(self) -> Proof:
        """No attempt has left files behind that readers do not see."""


class Folders:
    """:param home: folder for all of it."""

    dag_id = "orders_continuous"

    def __init__(self, home: Path) -> None:
        self.checkpoint = str(home / "checkpoints" / "orders")
        self._landing, self._table = home / "landing" / "orders", home / "lake" / "orders"
        self.till = Till(self._landing)

    def landed(self) -> list[Row]:
        """As its files say."""
        return landed_rows(self._landing)

    def lake(self) -> list[Row]:
        """As pyarrow lists the folder."""
        return lake_rows(self._table)

    def no_stage_left(self) -> Proof:
        """Below the table's folder."""
        return no_stage_left(self._table)


class BucketTill(Till):
    """Lands objects, which appear whole.

    :param client: boto3's.
    """

    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        super().__init__(None)

    def put(self, name: str, text: str) -> None:
        self._client.put_object(Bucket=BUCKET, Key=f"{self._prefix}/{name}", Body=text.encode())


class InBucket:
    """:param endpoint: of the service."""

    dag_id = "orders_s3"

    def __init__(self, endpoint: str) -> None:
        import boto3

        key, secret = "AKIADEMO", "a-secret-of-the-demo"
        self._s3 = boto3.client(
            "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=key, aws_secret_access_key=secret
        )
        self._s3.create_bucket(Bucket=BUCKET)
        extra = {"endpoint_url": endpoint, "region_name": "us-east-1"}
        lake = {"conn_type": "aws", "login": key, "password": secret, "extra": extra}
        self.address = f"s3://lake@{BUCKET}"
        self.connection = json.dumps(lake)
        self.log_folder = f"s3://{BUCKET}/logs"
        self.checkpoint = f"{self.address}/checkpoints/orders"
        self.till = BucketTill(self._s3, "landing/orders")

    def landed(self) -> list[Row]:
        """As its objects say."""
        texts = (self._get(key).decode() for key in self.keys("landing/orders/"))
        return [row_of(line) for text in texts for line in text.splitlines()]

    def lake(self) -> list[Row]:
        """As a reader of symlinks does it: the files that manifests name."""
        from pyarrow import parquet

        rows: list[Row] = []
        for key in self.keys("lake/orders/_symlink_format_manifest/"):
            for address in self._get(key).decode().splitlines():
                data = self._get(address.removeprefix(f"s3://{BUCKET}/"))
                rows += parquet.ParquetFile(io.BytesIO(data)).read().to_pylist()
        return [utc(row) for row in rows]

    def no_stage_left(self) -> Proof:
        """By the marks of stages; and nothing lies in the table that no manifest names, but what manifests are of, and
        Hadoop's marks of folders: empty objects, whose names end with a slash."""
        named = {
            address.removeprefix(f"s3://{BUCKET}/")
            for key in self.keys("lake/orders/_symlink_format_manifest/")
            for address in self._get(key).decode().splitlines()
        }
        written = [key for key in self.keys("lake/orders/_batches/") if "/_" not in key.partition("/_batches/")[2]]
        unnamed = (key for key in written if key not in named and not key.endswith("/"))
        left = [*self.keys("lake/orders/_staging/"), *unnamed]
        return Proof(claim="no stage left in the bucket", problems=tuple(f"left: {key}" for key in left))

    def keys(self, prefix: str) -> list[str]:
        """All objects below a prefix."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    def _get(self, key: str) -> bytes:
        data: bytes = self._s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return data


@contextmanager
def bucket(host: str) -> Iterator[InBucket]:
    """A bucket of the demo's own, on moto's server, as the tests start it.

    :param host: where the server listens.
    """
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.object_store_server", host],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        place = InBucket(f"http://{host}:{port}")
        os.environ["AIRFLOW_CONN_LAKE"] = place.connection  # for who looks into the checkpoint from here
        yield place
    finally:
        server.kill()
        server.wait()
