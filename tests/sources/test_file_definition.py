"""What a FileSource refuses, and that writing one touches nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.sources.file import FileSource


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"path": ""}, "path"),
        ({"path": None}, "path"),
        ({"path": "landing/orders"}, "relative"),
        ({"path": "hdfs://landing/orders"}, "'hdfs' is not supported"),
        ({"path": "file://host/landing"}, "host"),
        ({"path": "/landing/{a,b"}, "not closed"),
        ({"path": "/landing/[ab"}, "not closed"),
        ({"format": "xml"}, "format"),
        ({"format": None}, "format"),
        ({"schema": " "}, "schema"),
        ({"max_files": 0}, "max_files"),
        ({"max_files": -1}, "max_files"),
        ({"max_files": 1.5}, "max_files"),
        ({"max_files": True}, "max_files"),
        ({"max_files": "10"}, "max_files"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"min_file_age": 0}, "min_file_age"),
        ({"max_file_age": 0}, "max_file_age"),
        ({"max_file_age": float("inf")}, "max_file_age"),
        ({"latest_first": "yes"}, "latest_first"),
        ({"recursive": 1}, "recursive"),
        ({"bounded": None}, "bounded"),
        ({"ordered": "by name"}, "ordered"),
        ({"ordered": True, "bounded": True}, "lists once"),
        ({"ordered": True, "full_listing_seconds": 0}, "full_listing_seconds"),
        ({"full_listing_seconds": 60}, "belongs to ordered"),
        ({"file_name_pattern": ""}, "file_name_pattern"),
        ({"clean_source": "move"}, "clean_source"),
        ({"clean_source": "archive"}, "archive_dir"),
        ({"archive_dir": "/archive"}, "clean_source"),
        ({"clean_source": "archive", "archive_dir": "/landing/orders/archive"}, "lie in each other"),
        ({"clean_source": "archive", "archive_dir": "/landing/orders"}, "lie in each other"),
        ({"clean_source": "archive", "archive_dir": "/landing"}, "lie in each other"),
        ({"path": "/landing/*/in", "clean_source": "archive", "archive_dir": "/landing/archive"}, "lie in each other"),
        ({"clean_source": "archive", "archive_dir": "archive"}, "relative"),
        ({"on_missing": "ignore"}, "on_missing"),
        ({"on_changed": "skip"}, "on_changed"),
        ({"options": ["multiLine"]}, "options"),
        ({"options": {"multiLine": None}}, "multiLine"),
        ({"options": {"pathGlobFilter": "*.json"}}, "file_name_pattern"),
        ({"options": {"ignoreCorruptFiles": True}}, "on_changed='read'.*on_missing='skip'"),
        ({"options": {"IGNORECORRUPTFILES": "true"}}, "set_aside"),
        ({"options": {"recursiveFileLookup": True}}, "recursive"),
        ({"options": {"maxFilesPerTrigger": 3}}, "max_files"),
        ({"max_file_age": 60, "latest_first": True, "max_files": 1}, "max_file_age"),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_written(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        FileSource(**{"path": "/landing/orders", **arguments})


def test_a_source_can_be_written_for_a_path_that_is_not_there_and_travels_as_json() -> None:
    source = FileSource(
        "file:///no/such/place/",
        format="csv",
        options={"header": True},
        max_files=500,
        min_file_age=0.5,
        clean_source="archive",
        archive_dir="/no/such/archive",
    )
    carried = json.loads(json.dumps(source.to_dict()))
    assert Definition.from_dict(carried) == source
    assert carried == source.to_dict()


@pytest.mark.parametrize(
    ("before", "now", "is_moved"),
    [
        ("/data/landing", "file:///data//landing/", False),
        ("/data/landing", "/data/./landing/*", False),
        ("/data/landing", "/data/landing-2", True),
        ("/data/landing", "/data/landing-2/*", True),
        ("s3://bucket/landing", "s3a://conn@bucket/landing/", False),
        ("s3://bucket/landing", "s3://other/landing", True),
    ],
)
def test_a_path_that_is_written_in_another_way_is_no_other_place(before: str, now: str, is_moved: bool) -> None:
    """A pipeline warns that what is there is read again, at each run, for a place that has moved."""
    sources = [FileSource(path, format="json", schema="id long") for path in (before, now)]
    assert (sources[1].moved_from(sources[0]) is not None) == is_moved


@pytest.mark.parametrize(
    "path",
    [
        "s3://key:password@bucket/landing",
        "s3://bucket",
        "s3://bucket/",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://b*/a",
        "s3://lake@landing--use1-az4--x-s3/orders",
        "gs://bucket/landing",
    ],
)
def test_what_is_no_address_is_refused_when_it_is_written(path: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        FileSource(path)
    assert "key:password" not in str(raised.value)


@pytest.mark.parametrize("archive", ["/archive", "s3://bucket/archive", "s3://lake@bucket/landing/archive"])
def test_an_archive_at_another_place_is_refused(archive: str) -> None:
    with pytest.raises(DefinitionError, match="archive_dir"):
        FileSource("s3://lake@bucket/landing", clean_source="archive", archive_dir=archive)


def test_the_definition_of_objects_comes_back_as_it_was() -> None:
    source = FileSource("s3://lake@bucket/landing/*.json", packages=["a:b:c"])
    assert Definition.from_dict(source.to_dict()) == source


def test_two_sources_of_one_prefix_share_whatever_their_connections() -> None:
    assert FileSource("s3://lake@bucket/in/*.json").shares_with(FileSource("s3a://bucket/in"))
    assert not FileSource("s3://lake@bucket/in").shares_with(FileSource("s3://lake@other/in"))
    assert not FileSource("s3://lake@bucket/in").shares_with(FileSource("/in"))
