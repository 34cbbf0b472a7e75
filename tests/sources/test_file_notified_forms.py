"""How a bucket tells of objects, and which sources may be told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.known_tables import TABLE_MARK
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.listing import Listing
from airflow_provider_microbatch.sources.file.notifications import events


@pytest.mark.parametrize(
    ("body", "keys"),
    [
        ({"Event": "s3:TestEvent", "Bucket": "b"}, []),
        ({"Event": "s3:TestEvent", "Bucket": "c"}, None),
        ({"Type": "Notification", "Message": json.dumps({"Event": "s3:TestEvent", "Bucket": "b"})}, []),
        (
            {
                "source": "aws.s3",
                "detail-type": "Object Created",
                "detail": {"bucket": {"name": "b"}, "object": {"key": "a+b%20c"}},
            },
            ["a+b%20c"],
        ),
        (
            {
                "source": "aws.s3",
                "detail-type": "Object Deleted",
                "detail": {"bucket": {"name": "b"}, "object": {"key": "a"}},
            },
            [],
        ),
        (
            {
                "Records": [
                    {"eventName": name, "s3": {"bucket": {"name": "b"}, "object": {"key": "a+b%2Bc"}}}
                    for name in (
                        "ObjectCreated:CompleteMultipartUpload",
                        "s3:ObjectCreated:Copy",
                        "ObjectRemoved:Delete",
                    )
                ]
            },
            ["a b+c", "a b+c"],
        ),
        (
            {"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {"key": 5}}}]},
            None,
        ),
    ],
)
def test_notifications_in_each_form(body: object, keys: list[str] | None) -> None:
    assert events.created(json.dumps(body), "b") == keys


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"notifications": "https://sqs.eu-west-1.amazonaws.com/1/q"}, "sqs://conn_id/queue"),
        ({"notifications": "sqs://key:secret@lake/q"}, "no key or password"),
        ({"notifications": "sqs://lake/q.fifo"}, "standard queue"),
        ({"notifications": 5}, "notifications must be an address"),
        ({"notifications": "sqs://lake/q", "ordered": True}, "ordered goes with no notifications"),
        ({"notifications": "sqs://lake/q", "bounded": True}, "bounded goes with no notifications"),
        ({"notifications": "sqs://lake/q", "min_file_age": 5}, "min_file_age goes with no notifications"),
        ({"notifications": "sqs://lake/q", "max_file_age": 5}, "max_file_age goes with no notifications"),
        ({"notifications": "sqs://lake/q", "path": "/data/landing"}, "path is a folder"),
    ],
)
def test_what_means_nothing_is_refused_at_parse(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        FileSource(**{"path": "s3://lake@bucket/landing", "schema": "id long", **arguments})


def test_the_mark_of_a_table_beside_the_source_is_none_of_its_own() -> None:
    listing = Listing("s3a://bucket/in", allow_table=False)
    told = [listing.tells_table(f"s3a://bucket/{folder}/{TABLE_MARK}") for folder in ("in", "in/a", "in-out")]
    assert told == [True, True, False]
