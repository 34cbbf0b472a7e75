"""The bytes of both logs: Spark's, with ours in them, and every way in which they can be spoilt."""

from __future__ import annotations

import json
import string
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch.checkpoint.codec import decode_commit, decode_offsets, encode_commit, encode_offsets
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry, RunIdentity
from airflow_provider_microbatch.exceptions import CheckpointError, CorruptEntryError, SourceCountError

EVOLUTION = {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"}

names = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=8).filter(
    lambda name: not name.startswith("_")
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
offsets = values.map(lambda value: json.dumps(value, ensure_ascii=False)) | st.sampled_from(
    ["4", '{"logOffset":0}', '{"topic:a": {"0": 23}}', '{"name":"a:b - c"}', '"\u2028"', "-1"]
)
runs = st.builds(
    RunIdentity, dag_id=texts, run_id=texts, task_id=texts, map_index=st.integers(-1, 9), ti_id=st.none() | texts
)
extras = st.dictionaries(texts.map(lambda key: f"x{key}"), values, max_size=2)


@st.composite
def entries(draw: st.DrawFn) -> OffsetEntry:
    sources = draw(st.lists(names, unique=True, max_size=4))
    return OffsetEntry(
        ends={name: draw(st.none() | offsets) for name in sources},
        starts={name: draw(st.none() | offsets) for name in sources},
        batch_timestamp_ms=draw(st.integers(0, 2**47)),
        watermark_ms=draw(st.integers(0, 2**53)),
        conf=draw(st.dictionaries(texts, texts, max_size=3)),
        run=draw(st.none() | runs),
        pipeline=draw(names),
        extra=draw(extras),
        source_metadata=draw(extras),
    )


@pytest.mark.slow
@given(entries(), st.randoms())
def test_v1_comes_back_whatever_the_order_of_the_sources(entry: OffsetEntry, random: Any) -> None:
    order = list(entry.ends)
    random.shuffle(order)
    data = encode_offsets(entry, version="v1", names=order)
    assert decode_offsets(data, where="here", names=sorted(order)) == entry


@pytest.mark.slow
@given(entries())
def test_v2_comes_back_with_the_setting_that_spark_needs(entry: OffsetEntry) -> None:
    read = decode_offsets(encode_offsets(entry, version="v2"), where="here")
    assert read == replace(entry, conf={**entry.conf, **EVOLUTION})
    assert list(read.ends) == list(entry.ends)


@given(
    st.builds(
        CommitEntry,
        next_watermark_ms=st.integers(0, 2**53),
        epoch=st.none() | st.integers(1, 99),
        requires_another_batch=st.booleans(),
        set_aside=st.booleans(),
        progress=st.dictionaries(texts, values, max_size=3),
        run=st.none() | runs,
        committed_ms=st.none() | st.integers(0, 2**47),
        extra=extras,
    )
)
def test_commits_come_back(entry: CommitEntry) -> None:
    assert decode_commit(encode_commit(entry), where="here") == entry


@pytest.mark.slow
@given(entries(), st.sampled_from(["v1", "v2"]), st.data())
def test_an_entry_cut_off_anywhere_is_refused(entry: OffsetEntry, version: str, data: st.DataObject) -> None:
    whole = encode_offsets(entry, version=version)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        read = decode_offsets(cut, where="offsets/7", names=list(entry.ends))
    except CorruptEntryError:
        return
    # The last offset alone may be cut where what is left is JSON too, as 42 to 4; no text can tell that.
    assert list(read.ends) == list(entry.ends)
    lost = [name for name in entry.ends if read.ends[name] != entry.ends[name]]
    assert len(lost) <= 1
    assert all(str(entry.ends[name]).startswith(str(read.ends[name])) for name in lost)


def test_bytes_of_v1_are_sparks() -> None:
    entry = OffsetEntry(
        ends={"orders": '{"logOffset":3}', "refunds": None},
        batch_timestamp_ms=7,
        conf={"spark.sql.shuffle.partitions": "2"},
    )
    assert encode_offsets(entry, version="v1", names=("orders", "refunds")) == (
        b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":7,"conf":{"spark.sql.shuffle.partitions":"2"}}\n{"logOffset":3}\n-'
    )
    assert encode_commit(CommitEntry(next_watermark_ms=5)) == b'v1\n{"nextBatchWatermarkMs":5}'


def test_bytes_of_v2_leave_out_a_source_without_data() -> None:
    entry = OffsetEntry(ends={"orders": '{"logOffset":3}', "refunds": None}, batch_timestamp_ms=7, pipeline="p")
    version, head, *lines = encode_offsets(entry, version="v2").decode().split("\n")
    assert version == "v2"
    assert lines == ['orders:{"logOffset":3}']
    assert json.loads(head)["conf"] == EVOLUTION
    assert list(json.loads(head)) == [
        "batchWatermarkMs",
        "batchTimestampMs",
        "conf",
        "sourceMetadataInfo",
        "microbatch",
    ]


def test_a_v1_entry_of_ours_is_read_by_its_own_names() -> None:
    """A pipeline that lists its sources in another order today still finds each position."""
    entry = OffsetEntry(ends={"a": "1", "b": "2"}, batch_timestamp_ms=0, pipeline="p")
    data = encode_offsets(entry, version="v1", names=("a", "b"))
    assert decode_offsets(data, where="here", names=("b", "a")).ends == {"a": "1", "b": "2"}


def test_a_v1_entry_of_spark_is_read_by_position() -> None:
    data = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":7,"conf":{}}\n{"logOffset":3}\n-'
    assert decode_offsets(data, where="here", names=("b", "a")).ends == {"b": '{"logOffset":3}', "a": None}


@pytest.mark.parametrize("named", [(), ("orders",), ("orders", "refunds", "users")])
def test_another_number_of_sources_is_refused_in_sparks_words(named: tuple[str, ...]) -> None:
    data = b"v1\n{}\n1\n-"
    with pytest.raises(SourceCountError) as caught:
        decode_offsets(data, where="/c/offsets/4", names=named)
    assert str(caught.value).startswith(
        f"There are [2] sources in the checkpoint offsets and now there are [{len(named)}] sources requested by the "
        "query. Cannot continue."
    )
    assert "/c/offsets/4" in str(caught.value)
    assert str(list(named)) in str(caught.value)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("start", [None, "3"])
def test_an_entry_without_an_end_has_its_bytes_also_when_the_end_is_known(version: str, start: str | None) -> None:
    ends: dict[str, str | None] = {"a": start, "b": "7"}
    planned = OffsetEntry(ends=ends, starts={"a": start, "b": None}, batch_timestamp_ms=1, late=("a",))
    written = encode_offsets(planned, version=version)
    read = decode_offsets(written, where="here")
    assert read.unresolved == ("a",)
    assert read.ends == ends
    resolved = replace(read, ends={**ends, "a": "5"}, resolved_by=2)
    assert resolved.unresolved == ()
    assert encode_offsets(resolved, version=version) == written


def test_a_v1_entry_must_have_the_sources_of_its_log() -> None:
    entry = OffsetEntry(ends={"a": "1", "c": "2"}, batch_timestamp_ms=0)
    with pytest.raises(SourceCountError, match=r"\['a', 'b'\].*\['a', 'c'\]"):
        encode_offsets(entry, version="v1", names=("a", "b"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"v", "torn"),
        (b"v1", "torn"),
        (b"v1\n", "torn after"),
        (b'v1\n{"batchWaterm', "torn or no JSON"),
        (b"v1\n[]", "no JSON object"),
        (b'v1\n{"batchTimestampMs":"soon"}', "batchTimestampMs is no whole number"),
        (b'v1\n{"conf":[]}', "conf is no JSON object"),
        (b"v3\n{}", "version 'v3'.*reads v1 and v2"),
        (b"\xff\xfe", "no UTF-8"),
        (b'v2\n{}\na:{"logOff', "torn or nonsense"),
        (b'v2\n{}\n{"logOffset":1}', "cannot be used"),
        (b"v2\n{}\na:1\na:2", "torn or nonsense"),
        (b"v2\n{}\na:1\n\n", "cannot be used"),
        (b'v2\n{"microbatch":{"sources":["a","b"],"without_offset":[]}}\na:1', r"offsets of \['b'\] are missing"),
        (b'v1\n{"microbatch":{"sources":["a","b"]}}\n1', "names 2 sources"),
        (b'v1\n{"microbatch":{"sources":["a"],"without_offset":[]}}\n-', r"offsets of \['a'\] are missing"),
        (b'v1\n{"microbatch":{"sources":["a"],"without_offset":0}}\n-', "without an offset are 0"),
        (b'v1\n{"microbatch":{"sources":5}}\n1', "source names are 5"),
        (
            b'v1\n{"microbatch":{"sources":["a"],"without_offset":[],"starts":{"a":7}}}\n1',
            "the offset 7 of source 'a' is unreadable",
        ),
        (b'v1\n{"microbatch":{"pipeline":7}}\n1', "its pipeline is 7"),
        (b'v1\n{"microbatch":{"sources":["a"],"starts":{},"late":["a"]}}\n1', "with a late end are"),
        (b'v1\n{"microbatch":{"run":{"dag_id":"d","run_id":"r","task_id":"t","ti_id":7}}}', "its run.ti_id is 7"),
    ],
)
def test_spoilt_entries_say_where_and_what_to_do(data: bytes, message: str) -> None:
    with pytest.raises(CorruptEntryError, match=message) as caught:
        decode_offsets(data, where="/c/offsets/4")
    assert "/c/offsets/4" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"v1",
        b'v1\n{"next',
        b"v2\n{}",
        b"v1\n{}\n{}",
        b'v1\n{"nextBatchWatermarkMs":null}',
        b'v1\n{"microbatch":{"committed_ms":"now"}}',
        b'v1\n{"microbatch":{"committed_ms":true}}',
        b'v1\n{"microbatch":{"committed_ms":1' + 15 * b"0" + b"}}",
        b'v1\n{"microbatch":{"progress":{"numInputRows":{"orders":"7"}}}}',
    ],
)
def test_spoilt_commits_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptEntryError, match="/c/commits/4"):
        decode_commit(data, where="/c/commits/4")


@pytest.mark.parametrize("data", [b"v1\n{}\n1\n", b"v2\n{}\na:1\n"])
def test_one_newline_at_the_end_is_tolerated(data: bytes) -> None:
    assert decode_offsets(data, where="here", names=("a",)).ends == {"a": "1"}


def test_what_we_do_not_know_is_carried() -> None:
    head = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{},"new":[1],"microbatch":{"ours":{"later":1}}}'
    entry = decode_offsets(f"v1\n{head}\n1".encode(), where="here", names=("a",))
    assert encode_offsets(entry, version="v1", names=("a",)).decode() == f"v1\n{head}\n1"
    commit = '{"nextBatchWatermarkMs":0,"new":{"a":1},"microbatch":{"later":1}}'
    assert encode_commit(decode_commit(f"v1\n{commit}".encode(), where="here")).decode() == f"v1\n{commit}"


@pytest.mark.parametrize("offset", ["1\n2", "1\r2", "", "-", "{", "\ud800"])
def test_an_offset_that_is_not_one_line_of_json_is_refused(offset: str) -> None:
    entry = OffsetEntry(ends={"orders": offset}, batch_timestamp_ms=0)
    for version in ("v1", "v2"):
        with pytest.raises(CheckpointError, match=r"source 'orders' gave the offset"):
            encode_offsets(entry, version=version)
