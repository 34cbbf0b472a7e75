"""An object store of the tests' own: moto's S3 on loopback, started when it is first needed, one for a session and all
processes that it starts."""

from __future__ import annotations

import os
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.support.child_server import started
from tests.support.object_store_server import BUCKET as BUCKET
from tests.support.object_store_server import LOAD

KEY, SECRET = "AKIATESTS", "a-secret-of-the-tests"
_ENDPOINT = "MICROBATCH_TESTS_S3"
"""Names the server to processes that are started after it."""


def endpoint() -> str:
    """The address of the server, which runs by now, with :data:`BUCKET` in it. The environment's credentials lead
    there."""
    if _ENDPOINT not in os.environ:
        _start()
    return os.environ[_ENDPOINT]


def address(folder: Path) -> str:
    """The address of a checkpoint that belongs to a folder of the tests."""
    endpoint()
    return f"s3://{BUCKET}{folder.absolute()}"


def client(service: str = "s3") -> Any:
    """A client of another library than the one that is tested; one for a process, as threads may share one."""
    return _client(service, endpoint(), os.getpid())


@cache
def _client(service: str, url: str, process: int) -> Any:
    import boto3

    return boto3.client(
        service, endpoint_url=url, region_name="us-east-1", aws_access_key_id=KEY, aws_secret_access_key=SECRET
    )


def keys(folder: Path) -> list[str]:
    """All keys of :func:`address`, relative to it, the hidden ones too."""
    prefix = f"{str(folder.absolute()).strip('/')}/"
    pages = client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return [one["Key"].removeprefix(prefix) for page in pages for one in page.get("Contents", [])]


def versions(folder: Path) -> dict[str, str]:
    """The same, each with what is another one when its object is."""
    prefix = f"{str(folder.absolute()).strip('/')}/"
    pages = client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return {one["Key"]: one["ETag"] for page in pages for one in page.get("Contents", [])}


def load(folder: Path) -> None:
    """Put all files of a folder to :func:`address` of it, in place of what is there: faster than by requests."""
    with urllib.request.urlopen(f"{endpoint()}{LOAD}?{urlencode({'folder': str(folder.absolute())})}", timeout=60):
        pass


def environment(url: str) -> dict[str, str]:
    """What leads the environment's credentials to a server."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


def _start() -> None:
    url = f"http://127.0.0.1:{started('tests.support.object_store_server')}"
    os.environ.update(environment(url))
    os.environ[_ENDPOINT] = url
