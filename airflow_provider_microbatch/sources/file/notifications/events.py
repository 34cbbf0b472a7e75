"""Reads the messages by which S3 tells of new objects: straight, by a topic of SNS, or by EventBridge.

The forms: https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html and
https://docs.aws.amazon.com/AmazonS3/latest/userguide/ev-events.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_plus

_CREATED = "ObjectCreated:"


def created(body: str, bucket: str) -> list[str] | None:
    """The keys of the objects that a message says have come to the bucket; empty for one that tells of something else
    there, such as the test that S3 sends when notifications are switched on. None for a message that is no notification
    of this bucket."""
    try:
        return _of(json.loads(body), bucket)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _of(message: Mapping[str, Any], bucket: str) -> list[str] | None:
    if message.get("Type") == "Notification":
        return _of(json.loads(message["Message"]), bucket)
    if message.get("Event") == "s3:TestEvent":
        return [] if message["Bucket"] == bucket else None
    if message.get("source") == "aws.s3":
        detail = message["detail"]
        if detail["bucket"]["name"] != bucket:
            return None
        return [_text(detail["object"]["key"])] if message["detail-type"] == "Object Created" else []
    records = message["Records"]
    if not records or any(one["s3"]["bucket"]["name"] != bucket for one in records):
        return None
    new = [one for one in records if one["eventName"].removeprefix("s3:").startswith(_CREATED)]
    return [unquote_plus(_text(one["s3"]["object"]["key"])) for one in new]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a key is a text, not {value!r:.100}")
    return value
