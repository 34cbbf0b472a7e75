"""Objects of a bucket whose keys end in a slash and that have bytes: they mark folders, and are no data."""

from __future__ import annotations

import pytest

from airflow_provider_microbatch.exceptions import SourceChangedError
from airflow_provider_microbatch.runtime.files import told
from airflow_provider_microbatch.stores.object_store.address import Address
from airflow_provider_microbatch.stores.object_store.bucket import Bucket as Requests
from tests.sources.object_world import Bucket
from tests.support.object_store_server import BUCKET

pytestmark = pytest.mark.slow  # a bucket is served


@pytest.mark.parametrize("page", [2, 3, 1000])
def test_a_mark_of_a_folder_with_bytes_is_never_taken_for_the_object_of_its_key_without_the_slash(
    bucket: Bucket, caplog: pytest.LogCaptureFixture, page: int
) -> None:
    for name in ("a.json", "a.json-1", "b.json", "c.json", "c.json/d.json"):
        bucket.land(name)
    for name in ("a.json/", "b.json/", "c.json/"):
        bucket.land(name, '{"id": 2}\n{"id": 3}\n')
    requests = Requests(Address(scheme="s3", conn_id="lake", bucket=BUCKET, prefix=bucket.prefix))
    found = [
        (one["path"].removeprefix(f"{bucket.prefix}/"), one["size"])
        for one in requests.objects(bucket.prefix, page=page)
    ]
    assert found == [(name, 10) for name in ("a.json", "a.json-1", "b.json", "c.json", "c.json/d.json")]
    end, names = bucket.plan(on_changed="read")
    assert sorted(names) == ["a.json", "a.json-1", "b.json", "c.json"]
    assert not bucket.open().has_new(end)
    assert "b.json/', with bytes" in caplog.text


def test_a_mark_of_a_folder_with_bytes_stops_no_batch(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    """Where nothing is listed before it that tells, it is planned as an object without the slash."""
    bucket.land("a.json")
    bucket.land("sub/")
    end, names = bucket.plan()
    assert names == ["a.json"]
    assert "mark folders, are no data, and are left out: 's3a://" in caplog.text
    source = bucket.open()
    source.verify(None, end, told(source.read(None, end).arguments))
    bucket.land("sub/", '{"id": 2}\n')  # it is not what was planned any more
    with pytest.raises(SourceChangedError, match=r"vanished: .*sub"):
        bucket.open().read(None, end)
