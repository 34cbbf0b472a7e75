"""The clock of the service. Reading it takes one request, no write, and no permission at all."""

from __future__ import annotations

import urllib.error
import urllib.request
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores.object_store.address import GCS
from airflow_provider_microbatch.stores.object_store.bucket import Bucket
from airflow_provider_microbatch.stores.object_store.credentials import CONNECT_SECONDS
from airflow_provider_microbatch.stores.object_store.forks import library

_GOOGLE = "https://storage.googleapis.com"


def service_ms(bucket: Bucket) -> int:
    """The time that the service's clock shows, in whole seconds, as milliseconds since the epoch: the time of its
    answer, which every answer states (``Date``, RFC 9110 6.6.1), a refusal too. The library does not return this
    header.

    :raises CheckpointError: if there is no answer.
    """
    return bucket.ask("ask the clock of", "", lambda _: _asked(bucket))


def _asked(bucket: Bucket) -> int:
    opened = bucket.opened()
    request = urllib.request.Request(_place(bucket), method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=CONNECT_SECONDS, context=opened.tls) as answer:
            date = answer.headers.get("Date")
    except urllib.error.HTTPError as refusal:
        date = refusal.headers.get("Date")
    try:
        told = parsedate_to_datetime(date or "")
    except ValueError:
        raise CheckpointError(
            f"the service of {bucket.address.of} {bucket.address} ({bucket.address.who}) "
            "says no time (Date) in its answers, so that nobody could tell whether an attempt is alive. Use a service, "
            "or a proxy before it, that does."
        ) from None
    return int(told.replace(tzinfo=told.tzinfo or UTC).timestamp()) * 1000


def _place(bucket: Bucket) -> str:
    """Return an address at the service's endpoint that contains no secret."""
    if bucket.address.scheme == GCS:
        return f"{_GOOGLE}/{bucket.address.bucket}"
    signer: Any = bucket.opened().signer
    signed: str = library().sign(signer, "HEAD", bucket.address.prefix, timedelta(minutes=1))
    return signed.partition("?")[0]
