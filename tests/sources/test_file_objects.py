"""Files in an object store: listed, planned, cleaned and looked at without a JVM, on a real S3 API."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import CheckpointError, SourceChangedError, SourceError
from airflow_provider_microbatch.runtime.files import joined, told
from airflow_provider_microbatch.sources.file.place import NOTES
from airflow_provider_microbatch.sources.intervals import Interval
from airflow_provider_microbatch.stores.object_store.address import Address
from airflow_provider_microbatch.stores.object_store.bucket import Bucket as Requests
from tests.sources.object_world import KEY, SECRET, Bucket
from tests.sources.support import paths
from tests.support import object_store
from tests.support.faulty_proxy import Answer, Asked, Forward, busy, error, truncated
from tests.support.object_store_server import BUCKET

pytestmark = pytest.mark.slow  # a bucket is served

CHECKPOINT = "0f" * 16


def test_each_object_is_planned_once_and_what_comes_later_by_the_next_batch(bucket: Bucket) -> None:
    bucket.land("a.json")
    bucket.land("dt=1/b.json")
    first, names = bucket.plan()
    assert sorted(names) == ["a.json", "dt=1/b.json"]
    assert not bucket.open().has_new(first)
    bucket.land("c.json")
    assert bucket.open().has_new(first)
    second, names = bucket.plan(first)
    assert names == ["c.json"]
    assert bucket.open().latest_offset(second) == second


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("objects", [5, 6, 7])
def test_each_page_of_a_listing_is_asked_for_once(bucket: Bucket, objects: int, ahead: bool) -> None:
    for number in range(objects):
        bucket.land(f"{number}.json")
    address = Address(scheme="s3", conn_id="lake", bucket=BUCKET, prefix=bucket.prefix)
    with bucket.proxy.counted() as asked:
        requests = Requests(address)
        pages = requests.pages(bucket.prefix, page=3) if ahead else [list(requests.objects(bucket.prefix, page=3))]
        found = [one["path"] for page in pages for one in page]
    assert found == [f"{bucket.prefix}/{number}.json" for number in range(objects)]
    assert asked == {"list": objects // 3 + 1}


def test_the_next_page_of_a_listing_is_asked_for_while_the_first_one_is_worked_on(bucket: Bucket) -> None:
    for number in range(7):
        bucket.land(f"{number}.json")
    address = Address(scheme="s3", conn_id="lake", bucket=BUCKET, prefix=bucket.prefix)
    with bucket.proxy.counted() as asked:
        listing = Requests(address).pages(bucket.prefix, page=3)
        next(listing)
        listing.close()  # waits for what is under way
    assert asked == {"list": 2}


@pytest.mark.parametrize("page", [2, 3, 1000])
def test_marks_of_folders_are_in_nobodys_way_where_a_listing_goes_on(bucket: Bucket, page: int) -> None:
    """A mark's key ends in a slash, which the client cuts off: it stands behind objects that sort after it then."""
    for name in ("a-b/0.json", "a/0.json", "a.json", "c/d-e/0.json", "c/d/f.json", "g.json"):
        bucket.land(name)
    for name in ("a/", "c/", "c/d/", "c/d-e/", "z/"):
        bucket.land(name, "")
    requests = Requests(Address(scheme="s3", conn_id="lake", bucket=BUCKET, prefix=bucket.prefix))
    keys = [key.removeprefix(f"{bucket.prefix}/") for key in bucket.keys(f"{bucket.prefix}/") if key[-1] != "/"]
    for listed in (
        requests.objects(bucket.prefix, page=page),
        (one for many in requests.pages(bucket.prefix, page=page) for one in many),
    ):
        assert [one["path"].removeprefix(f"{bucket.prefix}/") for one in listed if one["size"]] == keys
    end, names = bucket.plan(recursive=True)
    assert sorted(names) == sorted(keys)
    assert not bucket.open(recursive=True).has_new(end)


def _backwards(asked: Asked, forward: Forward) -> Answer:
    answer = forward()
    found = re.findall(rb"<Contents>.*?</Contents>", answer.body, re.DOTALL)
    body = answer.body.replace(b"".join(found), b"".join(reversed(found)))
    return Answer(status=answer.status, headers=answer.headers, body=body)


def test_a_service_that_lists_in_no_order_plans_nothing(bucket: Bucket) -> None:
    for number in range(3):
        bucket.land(f"{number}.json")
    source = bucket.open()
    bucket.proxy.fail(lambda asked: asked.kind == "list", _backwards, times=9)
    with pytest.raises(SourceError, match=r"no order of keys .*general purpose buckets"):
        source.latest_offset(None)


def test_a_page_that_does_not_begin_behind_the_one_before_ends_the_listing(bucket: Bucket) -> None:
    for number in range(7):
        bucket.land(f"{number}.json")
    pages: list[Answer] = []

    def the_first(asked: Asked, forward: Forward) -> Answer:
        pages.append(forward())
        return pages[0]

    bucket.proxy.fail(lambda asked: asked.kind == "list", the_first, times=9)
    address = Address(scheme="s3", conn_id="lake", bucket=BUCKET, prefix=bucket.prefix)
    with pytest.raises(CheckpointError, match="no order of keys"):
        list(Requests(address).objects(bucket.prefix, page=3))
    assert len(pages) < 9


@pytest.mark.parametrize(
    "name", ["a b.json", "a%20b.json", "a%.json", "12:30.json", "x*y.json", "é.json", "q?#&+.json", "br{a}.json"]
)
def test_keys_come_out_of_the_log_as_they_are(bucket: Bucket, name: str) -> None:
    bucket.land(name)
    end, names = bucket.plan()
    assert names == [name]
    assert bucket.open().latest_offset(end) == end


@pytest.mark.parametrize("name", [".x", "_x", "x._COPYING_", "_tmp/x", "folder/x", "empty", "mark/"])
def test_hidden_empty_and_folders_that_are_no_partitions_are_left_out(bucket: Bucket, name: str) -> None:
    bucket.land(name, "" if name in ("empty", "mark/") else "{}")
    assert not bucket.open().has_new(None)


def test_globs_and_braces_choose_keys(bucket: Bucket) -> None:
    for name in ("in1/a.json", "in1/b.csv", "in2/a.json", "in3/a.json", "in1/deep/a.json", "in1/k=1/a.json"):
        bucket.land(name)
    assert sorted(bucket.plan(path="/in{1,2}/*.json")[1]) == ["in1/a.json", "in2/a.json"]


def test_a_glob_over_folders_enters_their_partitions_and_recursive_all(bucket: Bucket) -> None:
    for name in ("in1/a.json", "in1/deep/a.json", "in1/k=1/a.json"):
        bucket.land(name)
    assert sorted(bucket.plan(path="/in?")[1]) == ["in1/a.json", "in1/k=1/a.json"]


def test_recursive_enters_all_folders_but_hidden_ones(bucket: Bucket) -> None:
    bucket.land("in1/deep/a.json")
    bucket.land("in1/_temporary/b.json")
    assert bucket.plan(recursive=True)[1] == ["in1/deep/a.json"]


def test_partitions_are_grouped_below_the_part_without_a_glob(bucket: Bucket) -> None:
    bucket.land("k=1/a.json")
    end, _ = bucket.plan()
    (group,) = bucket.open().read(None, end).arguments["groups"]
    assert group["base_path"] == f"s3a://{BUCKET}/{bucket.prefix}"


def test_a_planned_object_that_was_written_again_is_named(bucket: Bucket) -> None:
    bucket.land("a.json", '{"id": 1}\n')
    end, _ = bucket.plan()
    bucket.land("a.json", '{"id": 2}\n')  # as many bytes, and most often within the same second
    with pytest.raises(SourceChangedError, match=r"1 planned file\(s\) changed: .*a\.json.*ETag"):
        bucket.open().read(None, end)
    bucket.land("a.json", '{"id": 1}\n')
    bucket.open().read(None, end)


def test_a_planned_object_that_is_gone_is_named(bucket: Bucket) -> None:
    bucket.land("a.json")
    end, _ = bucket.plan()
    bucket.remove("a.json")
    with pytest.raises(SourceChangedError, match=r"vanished: .*a\.json"):
        bucket.open().read(None, end)


@pytest.mark.parametrize("path", ["", "/*.json", "/a.json"], ids=["folder", "glob", "object"])
def test_an_empty_prefix_is_no_reason_to_skip_what_was_in_it(bucket: Bucket, path: str) -> None:
    """As at a site that lags behind, or in a bucket that is restored and not filled yet: objects are back later, and no
    batch would read them."""
    bucket.land("a.json")
    end, _ = bucket.plan(path=path)
    bucket.remove("a.json")
    bucket.land(f"{NOTES}/{CHECKPOINT}.orders")
    source = bucket.open(path, on_missing="skip")
    with pytest.raises(SourceChangedError, match=r"all 1 planned.*gone and no object is below '.*/landing'.*a\.json"):
        source.read(None, end)
    bucket.land(".keep", "")
    assert paths(source.read(None, end)) == []
    bucket.land("a.json")
    assert len(paths(source.read(None, end))) == 1


def test_an_ordered_source_asks_only_for_what_comes_after(bucket: Bucket) -> None:
    position = None
    for number in range(4):
        bucket.land(f"{number}.json")
        position, names = bucket.plan(position, ordered=True)
        assert names == [f"{number}.json"]
    bucket.proxy.asked.clear()
    bucket.open(ordered=True).has_new(position)
    (listed,) = [one.query for one in bucket.proxy.asked if one.kind == "list"]
    assert listed["start-after"] == [f"{bucket.prefix}/2.jso"]


def test_an_ordered_source_goes_on_behind_a_name_of_one_character(bucket: Bucket) -> None:
    """The listing begins at its folder then, and what sorts between folder and slash is listed once more."""
    position = None
    for names in (["a-b/0", "a/1"], ["a/2"], ["b/1"]):
        for name in names:
            bucket.land(name)
        position, planned = bucket.plan(position, ordered=True, recursive=True)
        assert planned == names
        assert not bucket.open(ordered=True, recursive=True).has_new(position)


@pytest.mark.slow
def test_a_poll_with_nothing_new_is_one_request_for_each_thousand_keys(bucket: Bucket) -> None:
    bucket.world.checkpoint_id = CHECKPOINT
    for number in range(150):
        bucket.land(f"{number}.json")
    end, _ = bucket.plan()
    assert not bucket.open().has_new(end), "once in a minute the newest names are looked at"
    for number in range(3):
        bucket.proxy.asked.clear()
        assert not bucket.open().has_new(end)
        # The object of the path's own name is asked for too, and the notes of what was taken.
        assert sorted(one.kind for one in bucket.proxy.asked) == ["head", "list", "list"], number


def test_files_of_an_interval_are_those_that_were_written_in_it(bucket: Bucket) -> None:
    bucket.land("a.json")
    (found,) = object_store.client().list_objects_v2(Bucket=BUCKET, Prefix=bucket.prefix)["Contents"]
    ms = int(found["LastModified"].timestamp() * 1000)
    survey = bucket.open().survey_interval(Interval(start_ms=ms, end_ms=ms + 1), {})
    assert survey.unread
    survey = bucket.open().survey_interval(Interval(start_ms=ms + 1000, end_ms=ms + 2000), {})
    assert not survey.unread


def test_deleting_takes_what_was_read_and_nothing_that_was_written_since(bucket: Bucket) -> None:
    for name in ("a.json", "b.json"):
        bucket.land(name)
    end, _ = bucket.plan()
    bucket.land("b.json", '{"id": 2}\n')
    source = bucket.open(clean_source="delete")
    source.release(None, end)
    assert end is not None
    source.commit(end)
    assert bucket.keys(bucket.prefix) == [f"{bucket.prefix}/b.json"]


def test_what_is_archived_is_read_from_the_archive(bucket: Bucket) -> None:
    bucket.land("k=1/a b%.json")
    archive = bucket.location.replace("landing", "archive")
    arguments = {"clean_source": "archive", "archive_dir": archive}
    end, _ = bucket.plan(**arguments)
    source = bucket.open(**arguments)
    source.release(None, end)
    assert end is not None
    source.commit(end)
    assert bucket.keys(bucket.prefix) == []
    (path,) = paths(bucket.open(**arguments).read(None, end))
    assert path == f"s3a://{BUCKET}/{bucket.prefix.replace('landing', 'archive')}/k=1/a b%.json"
    source.commit(end)


def test_an_object_that_was_deleted_is_put_back_below_an_archive(bucket: Bucket) -> None:
    """Where it was it would have another ETag, if it is encrypted, or uploaded in parts; nobody can set its time."""
    bucket.land("k=1/a.json", '{"id": 1}\n')
    end, _ = bucket.plan()
    source = bucket.open(clean_source="delete")
    source.release(None, end)
    assert end is not None
    source.commit(end)
    bucket.land("k=1/a.json", '{"id":1 }\n')  # the ETag of another upload
    with pytest.raises(SourceChangedError, match=r"k=1/a\.json.*below a folder of the bucket.*archive_dir=…") as raised:
        bucket.open(on_changed="read").read(None, end)
    assert "cp -p" not in str(raised.value)
    below = bucket.prefix.replace("landing", "back")
    bucket.land("k=1/a.json", '{"id":1 }\n', below=below)
    back = bucket.open(clean_source="archive", archive_dir=f"s3://lake@{BUCKET}/{below}")
    assert back.not_replayable(None, end) is None
    expected = f"s3a://{BUCKET}/{below}/k=1/a.json"
    assert paths(back.read(None, end)) == [expected]
    back.release(None, end)
    back.commit(end)
    assert paths(bucket.open(clean_source="delete").read(None, end)) == [expected], "also by what is set after it"


def test_another_object_of_the_same_size_in_the_archive_is_no_copy(bucket: Bucket) -> None:
    """Another pipeline archives there, or the checkpoint was begun anew and corrected files came under their names."""
    archive = bucket.prefix.replace("landing", "archive")
    arguments = {"clean_source": "archive", "archive_dir": f"s3://lake@{BUCKET}/{archive}"}
    bucket.land("a.json", '{"id": 999}\n', below=archive)
    bucket.land("a.json", '{"id": 111}\n')
    end, _ = bucket.plan(**arguments)
    source = bucket.open(**arguments)
    source.release(None, end)
    assert end is not None
    for _ in range(2):
        with pytest.raises(SourceError, match=r"cannot archive .*a\.json.*exists already"):
            source.commit(end)
        replayed = bucket.open(**arguments)
        assert paths(replayed.read(None, end)) == [f"s3a://{BUCKET}/{bucket.prefix}/a.json"]
        assert replayed.not_replayable(None, end) is None
    assert bucket.text(f"{archive}/a.json") == '{"id": 999}\n'
    bucket.remove("a.json", below=archive)
    source.commit(end)
    assert bucket.keys(bucket.prefix) == []
    assert bucket.text(f"{archive}/a.json") == '{"id": 111}\n'


def test_a_copy_with_an_etag_of_its_own_is_known_by_its_bytes(bucket: Bucket) -> None:
    """Where objects are encrypted by KMS, or were uploaded in parts. A cleaner was killed before its delete."""
    archive = bucket.prefix.replace("landing", "archive")
    arguments = {"clean_source": "archive", "archive_dir": f"s3://lake@{BUCKET}/{archive}"}
    bucket.land("a.json")
    end, _ = bucket.plan(**arguments)
    source = bucket.open(**arguments)
    source.release(None, end)
    assert end is not None
    bucket.land_in_parts("a.json", below=archive)
    source.commit(end)
    assert bucket.keys(bucket.prefix) == []
    assert paths(bucket.open(**arguments).read(None, end)) == [f"s3a://{BUCKET}/{archive}/a.json"]


@pytest.mark.parametrize("how", ["delete", "archive"])
def test_a_checkpoint_that_has_forgotten_what_was_taken_plans_nothing(bucket: Bucket, how: str) -> None:
    bucket.world.checkpoint_id = CHECKPOINT
    archive = {"archive_dir": bucket.location.replace("landing", "archive")} if how == "archive" else {}
    bucket.land("a.json")
    end, _ = bucket.plan()
    source = bucket.open(clean_source=how, **archive)
    source.release(None, end)
    assert end is not None
    source.commit(end)
    note = f"{bucket.prefix}/{NOTES}/{CHECKPOINT}.orders"
    assert bucket.keys(bucket.prefix) == [note]
    assert source.latest_offset(end) == end
    bucket.world.checkpoint = "restored"  # from a backup of before the batch
    source = bucket.open(clean_source=how, **archive)
    with pytest.raises(SourceError, match=r"entries 0 to 0 of the source log .*is empty.*older backup") as raised:
        source.latest_offset(None)
    assert f"s3a://{BUCKET}/{note}" in str(raised.value)
    assert (f"s3a://{BUCKET}/{bucket.prefix.replace('landing', 'archive')}" in str(raised.value)) == (how == "archive")
    with pytest.raises(SourceError, match="older backup"):
        source.has_new(None)
    bucket.remove(f"{NOTES}/{CHECKPOINT}.orders")
    assert not source.has_new(None)


@pytest.mark.parametrize(
    ("path", "recursive"), [("", False), ("", True), ("/*", True), ("/*/*", False), ("/{*,.x}", True)]
)
def test_the_note_of_what_was_taken_is_no_data(bucket: Bucket, path: str, recursive: bool) -> None:
    bucket.land(f"{NOTES}/{CHECKPOINT}.orders")
    assert not bucket.open(path, recursive=recursive).has_new(None)


def forbidden(asked: Asked, forward: Forward) -> Answer:
    return error(403, "AccessDenied")


def test_nothing_is_taken_that_could_not_be_noted(bucket: Bucket) -> None:
    bucket.world.checkpoint_id = CHECKPOINT
    bucket.land("a.json")
    end, _ = bucket.plan()
    source = bucket.open(clean_source="delete")
    source.release(None, end)
    assert end is not None
    bucket.proxy.fail(lambda asked: asked.kind == "put", forbidden, times=9)
    with pytest.raises(SourceError, match=r"source 'orders': .*cannot be written: .*Nothing was taken") as raised:
        source.commit(end)
    assert SECRET not in str(raised.value)
    assert bucket.keys(bucket.prefix) == [f"{bucket.prefix}/a.json"]


def test_an_object_that_is_written_again_after_it_was_read_is_said(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.json", "b.json"):
        bucket.land(name)
    end, _ = bucket.plan()
    bucket.land("b.json", '{"id": 2}\n')  # as many bytes, and most often within the same second
    assert bucket.open().latest_offset(end) == end
    (said,) = [one.getMessage() for one in caplog.records if "changed since a batch has planned" in one.getMessage()]
    assert "1 file(s)" in said
    assert "b.json" in said
    assert bucket.open().not_read() is not None
    bucket.land("b.json")
    assert bucket.open().not_read() is None


def test_an_object_that_is_written_again_while_it_is_read_is_read_again(bucket: Bucket) -> None:
    bucket.land("a.json")
    end, _ = bucket.plan()
    source = bucket.open(on_changed="read")
    for text in ('{"id": 2}\n', '{"id": 3}\n'):
        read = source.read(None, end)
        source.verify(None, end, told(read.arguments))
        bucket.land("a.json", text)
        with pytest.raises(SourceChangedError, match=r"changed while the batch was read: .*a\.json"):
            source.verify(None, end, joined([told(read.arguments)]))


def test_a_range_is_known_by_the_etags_of_its_objects(bucket: Bucket) -> None:
    known = []
    for number, text in enumerate(('{"id": 1}\n', '{"id": 2}\n', '{"id": 1}\n')):
        bucket.world.checkpoint = f"checkpoint {number}"
        bucket.land("a.json", text)
        entry = bucket.plan()[0]
        path = Path(bucket.world.log.location.removeprefix("file://"), "0")
        path.write_text(re.sub(r'"(timestamp|mtime_ns)":\d+', r'"\1":1000000000', path.read_text()))
        known.append(bucket.open().known_as(None, entry))
    assert known[0] == known[2] != known[1]


def test_a_key_with_an_empty_part_is_named(bucket: Bucket) -> None:
    bucket.land("a//b.json")
    with pytest.raises(SourceError, match=r"source 'orders': .*no such key as '[^']*/landing/a//b\.json'\. Give the"):
        bucket.open().latest_offset(None)


def test_a_service_that_is_busy_loses_and_doubles_nothing(bucket: Bucket) -> None:
    for number in range(3):
        bucket.land(f"{number}.json")
    bucket.proxy.fail(lambda asked: asked.kind == "list", busy)
    bucket.proxy.fail(lambda asked: asked.kind == "head", busy)
    bucket.proxy.fail(lambda asked: asked.kind == "list", truncated)
    end, names = bucket.plan()
    assert sorted(names) == ["0.json", "1.json", "2.json"]
    assert bucket.open().latest_offset(end) == end


def test_a_missing_bucket_is_named_with_its_connection_and_a_remedy(bucket: Bucket) -> None:
    source = bucket.world.open("s3://lake@nowhere-to-be-found/landing", packages=[])
    with pytest.raises(SourceError, match=r"(?s)no-?where.*source s3://lake@nowhere.*'lake'.*make it") as raised:
        source.check()
    assert SECRET not in str(raised.value)


def test_a_key_that_spark_cannot_read_is_named_before_it_is_planned(bucket: Bucket) -> None:
    bucket.land("a*:b.json")
    with pytest.raises(SourceError, match=r"a\*:b\.json.*Spark cannot read it"):
        bucket.open().latest_offset(None)


@pytest.mark.parametrize("text", ["", "{}"])
def test_an_object_of_the_key_of_a_folder_of_partitions_is_named_before_any_is_planned(
    bucket: Bucket, text: str
) -> None:
    """Spark: "Option 'basePath' must be a directory"."""
    bucket.land("a.json")
    bucket.land("landing", text, below=bucket.prefix.removesuffix("/landing"))
    end, _ = bucket.plan()
    bucket.land("k=1/b.json")
    with pytest.raises(SourceError, match=r"'orders': an object has the key '.*landing'.*Remove the object"):
        bucket.open().latest_offset(end)


def test_secrets_are_in_no_plan_and_are_handed_over_by_name(bucket: Bucket) -> None:
    bucket.land("a.json")
    end, _ = bucket.plan()
    source = bucket.open()
    read = source.read(None, end)
    assert SECRET not in str(read)
    assert KEY not in str(read)
    secrets = source.secrets()
    assert set(read.arguments["secrets"]) == set(secrets)
    assert secrets[f"fs.s3a.bucket.{BUCKET}.secret.key"] == SECRET


def test_hadoops_connector_is_of_the_version_of_sparks_hadoop(bucket: Bucket) -> None:
    bucket.land("a.json")
    end, _ = bucket.plan()
    source = bucket.world.open(bucket.location)
    assert source.read(None, end).requires.packages == ("org.apache.hadoop:hadoop-aws:3.4.2",)


def test_a_log_that_names_another_bucket_is_not_looked_at_with_these_credentials(bucket: Bucket) -> None:
    bucket.land("a.json")
    end, _ = bucket.plan()
    entry = bucket.world.log.location.removeprefix("file://")
    path = Path(entry, "0")
    path.write_text(path.read_text().replace(f"s3a://{BUCKET}/", "s3a://somebody-elses/"))
    with pytest.raises(SourceError, match=r"somebody-elses.*another place"):
        bucket.open().read(None, end)
