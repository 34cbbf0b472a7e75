"""A machine in a cloud has an identity, which a service of its own tells: on a bad day, and where there is none."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores.object_store import bucket, failures
from airflow_provider_microbatch.stores.object_store.address import Address
from airflow_provider_microbatch.stores.object_store.bucket import Bucket
from tests.support import object_store
from tests.support.object_store_server import BUCKET

pytestmark = pytest.mark.slow  # a bucket is served

ROLE, NO_ANSWER = "the-role", 0
CREDENTIALS = {
    "AccessKeyId": object_store.KEY,
    "SecretAccessKey": object_store.SECRET,
    "Token": "a-token",
    "Expiration": "2099-01-01T00:00:00Z",
}


class Identity:
    """The service. ``hiccups``: what it answers to the next requests instead; :data:`NO_ANSWER` for nothing."""

    def __init__(self) -> None:
        self.hiccups: list[int] = []
        self.asked = 0
        service = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                service.asked += 1
                status = service.hiccups.pop(0) if service.hiccups else 200
                if status == NO_ANSWER:
                    self.close_connection = True
                    return
                told = json.dumps(CREDENTIALS) if self.path.endswith(ROLE) else ROLE
                self.send_response(status)
                self.end_headers()
                self.wfile.write(told.encode() if status == 200 else b"")

            do_GET = do_PUT = answer

            def log_message(self, *given: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> Iterator[Identity]:
    object_store.endpoint()
    found = Identity()
    Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://{found.address}")
    monkeypatch.setattr(failures, "_NOBODY", (found.address,))
    yield found
    found.server.shutdown()
    found.server.server_close()


def listed() -> None:
    list(Bucket(Address(scheme="s3", conn_id=None, bucket=BUCKET, prefix="x", of="checkpoint")).objects("x"))


@pytest.mark.parametrize("hiccup", [503, 429, NO_ANSWER])
def test_a_hiccup_of_the_identity_service_is_waited_for(identity: Identity, hiccup: int) -> None:
    identity.hiccups = [hiccup, hiccup]
    listed()
    assert identity.asked > 2


def test_where_no_service_tells_an_identity_the_advice_comes_soon(
    identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "IDENTITY_SECONDS", 0.5)
    identity.hiccups = [NO_ANSWER] * 1000
    began = time.monotonic()
    with pytest.raises(CheckpointError, match="Nothing names credentials"):
        listed()
    assert time.monotonic() - began < bucket.PATIENCE_SECONDS / 2


def test_a_service_that_is_busy_for_long_is_said_to_be(identity: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "PATIENCE_SECONDS", 0.3)
    identity.hiccups = [503] * 1000
    with pytest.raises(CheckpointError, match=r"HTTP 503.*patience ran out") as raised:
        listed()
    assert "credentials for" not in str(raised.value)


def test_a_machine_without_a_role_is_told_at_once(identity: Identity) -> None:
    identity.hiccups = [200, 404]
    with pytest.raises(CheckpointError, match="Nothing names credentials"):
        listed()
    assert identity.asked == 2
