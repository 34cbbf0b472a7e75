"""Objects that land in a bucket, behind a proxy that counts requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.sources import Late, OpenSource
from tests.sources.support import World, paths
from tests.support import object_store
from tests.support.faulty_proxy import FaultyProxy
from tests.support.object_store_server import BUCKET

KEY, SECRET = "AKIALANDING", "the-secret-of-the-landing"


class Bucket:
    """A landing prefix of its own, behind a proxy that counts requests."""

    def __init__(self, world: World, root: Path) -> None:
        self.world = world
        self.prefix = f"{str(root).strip('/')}/landing"
        self.proxy = FaultyProxy(object_store.endpoint())
        self._s3 = object_store.client()

    @property
    def location(self) -> str:
        return f"s3://lake@{BUCKET}/{self.prefix}"

    def connection(self, conn_id: str) -> Connection:
        assert conn_id == "lake"
        extra = {"endpoint_url": self.proxy.url, "region_name": "us-east-1"}
        return Connection(conn_id=conn_id, conn_type="aws", login=KEY, password=SECRET, extra=extra)

    def land(self, name: str, text: str = '{"id": 1}\n', *, below: str | None = None) -> None:
        self._s3.put_object(Bucket=BUCKET, Key=f"{below or self.prefix}/{name}", Body=text.encode())

    def land_in_parts(self, name: str, text: str = '{"id": 1}\n', *, below: str | None = None) -> None:
        """The same bytes as by :meth:`land`, with another ETag."""
        at = {"Bucket": BUCKET, "Key": f"{below or self.prefix}/{name}"}
        at["UploadId"] = self._s3.create_multipart_upload(**at)["UploadId"]
        part = self._s3.upload_part(**at, PartNumber=1, Body=text.encode())
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        self._s3.complete_multipart_upload(**at, MultipartUpload=parts)

    def text(self, key: str) -> str:
        return str(self._s3.get_object(Bucket=BUCKET, Key=key)["Body"].read().decode())

    def remove(self, name: str, *, below: str | None = None) -> None:
        self._s3.delete_object(Bucket=BUCKET, Key=f"{below or self.prefix}/{name}")

    def keys(self, prefix: str) -> list[str]:
        found = self._s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        return [one["Key"] for one in found]

    def open(self, path: str = "", **arguments: Any) -> OpenSource:
        return self.world.open(f"{self.location}{path}", packages=[], **arguments)

    def plan(self, position: str | None = None, path: str = "", **arguments: Any) -> tuple[str | None, list[str]]:
        """Where the next batch ends, and the names that it reads."""
        end = self.open(path, **arguments).latest_offset(position)
        assert not isinstance(end, Late)
        read = self.open(path, **arguments).read(position, end)
        return end, [one.removeprefix(f"s3a://{BUCKET}/{self.prefix}/") for one in paths(read)]
