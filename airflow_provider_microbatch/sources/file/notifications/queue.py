"""A queue of Amazon SQS, asked by boto3.

Calls and their limits: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ReceiveMessage.html
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from airflow_provider_microbatch.connections import Connect, type_of
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.lifetime import Close, shared
from airflow_provider_microbatch.sources.file.notifications import QueueAddress
from airflow_provider_microbatch.stores.object_store.aws import UNSUPPORTED, AwsAccess

log = logging.getLogger(__name__)

T = TypeVar("T")

HIDDEN_SECONDS = 120
"""For so long a received message is shown to nobody else: the time that a plan has to look at the objects and to append
them to the source log. The messages of a plan that died come again after it."""

_PAGE = 10  # the service's limit
_AT_ONCE = 16
_WAIT_SECONDS = 1
"""With a wait, the service asks all of its hosts: without one it may miss messages that are there."""


class QueueAwayError(Exception):
    """The queue does not answer for now."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """:param receipt: by which the message is deleted, or given back."""

    receipt: str
    body: str


class Queue:
    """The queue of one source.

    Methods raise :class:`QueueAwayError` if the service does not answer for now, and
    :class:`~airflow_provider_microbatch.exceptions.SourceError` if it refuses, as where there is no such queue.

    :param address: where it is.
    :param connect: finds its connection.
    """

    def __init__(self, address: QueueAddress, *, connect: Connect) -> None:
        self.address = address
        self._connect = connect

    def waiting(self) -> int:
        """About how many messages may be received now. Takes nothing."""
        name = "ApproximateNumberOfMessages"
        found = self._ask(lambda sqs, url: sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name]))
        return int(found["Attributes"][name])

    def receive(self, most: int) -> list[Message]:
        """Take messages; nobody else is shown them for :data:`HIDDEN_SECONDS`.

        :param most: about how many, at most.
        """
        wanted = min(self.waiting(), most)
        found: list[Message] = []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while len(found) < wanted:
                pages = min(-(-(wanted - len(found)) // _PAGE), _AT_ONCE)
                came = [message for page in pool.map(self._page, range(pages)) for message in page]
                if not came:
                    break
                found += came
        return found

    def delete(self, messages: Sequence[Message]) -> None:
        """Have messages come no more. One that cannot be deleted comes again, which does no harm."""
        self._for_each(messages, lambda sqs, url, entries: sqs.delete_message_batch(QueueUrl=url, Entries=entries))

    def give_back(self, messages: Sequence[Message]) -> None:
        """Have messages shown again at once."""
        self._for_each(
            messages,
            lambda sqs, url, entries: sqs.change_message_visibility_batch(
                QueueUrl=url, Entries=[{**entry, "VisibilityTimeout": 0} for entry in entries]
            ),
        )

    def _page(self, _: int) -> list[Message]:
        found = self._ask(
            lambda sqs, url: sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=_PAGE,
                VisibilityTimeout=HIDDEN_SECONDS,
                WaitTimeSeconds=_WAIT_SECONDS,
            )
        )
        return [Message(receipt=one["ReceiptHandle"], body=one["Body"]) for one in found.get("Messages", ())]

    def _for_each(self, messages: Sequence[Message], call: Callable[[Any, str, list[dict[str, str]]], Any]) -> None:
        def of(page: list[dict[str, str]]) -> None:
            answer = self._ask(lambda sqs, url: call(sqs, url, page))
            for failed in answer.get("Failed", ()):
                log.debug("%s: a message was not handled: %s", self.address, failed)

        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(of, _pages(messages)))
        except (QueueAwayError, SourceError) as error:
            log.warning("%s: some messages come again, which does no harm: %s", self.address, error)

    def _ask(self, call: Callable[[Any, str], T]) -> T:
        held = self._held
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

        try:
            return call(held.client, held.url())
        except ClientError as error:
            code, status = _code_of(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
            if status >= 500 or "Throttl" in code:
                raise QueueAwayError(str(error)) from error
            raise SourceError(
                f"{self.address} refuses {self.address.who}: {error}. Create the queue, or correct its name, the "
                "connection's region, or its rights: sqs:GetQueueUrl, GetQueueAttributes, ReceiveMessage, "
                "DeleteMessage, ChangeMessageVisibility."
            ) from error
        except (NoCredentialsError, NoRegionError) as error:
            raise SourceError(f"{self.address}: {self.address.who}: {error}") from error
        except BotoCoreError as error:
            raise QueueAwayError(str(error)) from error

    @cached_property
    def _held(self) -> _Held:
        access = self._access()
        key = (__name__, self.address, access.endpoint, access.region, access.keys, access.token)
        return shared(key, lambda: _opened(self.address, access))

    def _access(self) -> AwsAccess:
        conn_id = self.address.conn_id
        if conn_id is None:
            return AwsAccess()
        connection = self._connect(conn_id)
        if connection.conn_type != "aws":
            raise SourceError(
                f"{self.address}: connection {conn_id!r} is of type {type_of(connection)}; "
                "a queue needs one of type 'aws'."
            )
        for name in UNSUPPORTED:
            if connection.extra.get(name):
                raise SourceError(
                    f"{self.address}: connection {conn_id!r} has {name!r}, which is not supported here. Give it keys "
                    "(login, password, aws_session_token); or write sqs:///queue and let the workers have the role."
                )
        return AwsAccess.of(connection, service="sqs")


class _Held:
    """A client, and the URL of its queue, asked for once."""

    def __init__(self, client: Any, address: QueueAddress) -> None:
        self.client = client
        self._address = address
        self._url: str | None = None

    def url(self) -> str:
        if self._url is None:
            owner = {} if self._address.account is None else {"QueueOwnerAWSAccountId": self._address.account}
            self._url = str(self.client.get_queue_url(QueueName=self._address.name, **owner)["QueueUrl"])
        return self._url


def _opened(address: QueueAddress, access: AwsAccess) -> tuple[_Held, Close]:
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise SourceError(
            f"notifications are received by boto3, which is not installed here ({error}). It is needed where Airflow "
            "runs. Run: pip install 'airflow-provider-microbatch[sqs]'"
        ) from error
    key, secret = access.keys or (None, None)
    try:
        session = boto3.Session(
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            aws_session_token=access.token if key else None,
            region_name=access.region,
        )
        client = session.client(
            "sqs",
            endpoint_url=access.endpoint,
            verify=False if access.trusts_anybody else access.certificates,
            config=Config(
                connect_timeout=5.0,
                read_timeout=30.0,
                max_pool_connections=_AT_ONCE,
                retries={"mode": "standard", "max_attempts": 3},
            ),
        )
    except Exception as error:  # boto3's, of a region or a field that it does not take
        raise SourceError(f"{address}: {address.who} makes no client of SQS: {error}") from error
    return _Held(client, address), client.close


def _pages(messages: Sequence[Message]) -> Iterator[list[dict[str, str]]]:
    for first in range(0, len(messages), _PAGE):
        page = messages[first : first + _PAGE]
        yield [{"Id": str(number), "ReceiptHandle": one.receipt} for number, one in enumerate(page)]


def _code_of(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
