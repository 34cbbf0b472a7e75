"""A bucket that tells a queue of what lands, and a source that is told by it; a proxy counts what is asked."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from typing import Any

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.sources import Late, OpenSource
from tests.sources.support import World, paths
from tests.support import object_store
from tests.support.faulty_proxy import Asked, FaultyProxy


class Notified:
    """A bucket, its queue, and a source that is told by it; a proxy counts what is asked."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.proxy = FaultyProxy(object_store.endpoint())
        self._s3, self._sqs = object_store.client(), object_store.client("sqs")
        self.name = f"told-{uuid.uuid4().hex}"
        self._s3.create_bucket(Bucket=self.name)
        self.url = self._sqs.create_queue(QueueName=self.name)["QueueUrl"]
        self.position: str | None = None

    @property
    def address(self) -> str:
        return f"sqs://lake/{self.name}"

    def switch_on(self) -> None:
        """Have the bucket tell the queue from now on."""
        arn = self._sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        told = {"QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}]}
        self._s3.put_bucket_notification_configuration(Bucket=self.name, NotificationConfiguration=told)

    def connection(self, conn_id: str) -> Connection:
        assert conn_id == "lake"
        extra = {"endpoint_url": self.proxy.url, "region_name": "us-east-1"}
        return Connection(conn_id=conn_id, conn_type="aws", login="AKIATOLD", password="secret", extra=extra)

    def land(self, name: str) -> None:
        self._s3.put_object(Bucket=self.name, Key=f"landing/{name}", Body=b'{"id": 1}\n')

    def remove(self, name: str) -> None:
        self._s3.delete_object(Bucket=self.name, Key=f"landing/{name}")

    def waiting(self) -> int:
        """Messages, whether somebody has them or not."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self._sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)

    def lose(self) -> None:
        """Somebody else takes all messages."""
        while found := self._sqs.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10).get("Messages"):
            for one in found:
                self._sqs.delete_message(QueueUrl=self.url, ReceiptHandle=one["ReceiptHandle"])

    def send(self, body: str) -> None:
        self._sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def say(self, *names: str, bucket: str | None = None) -> None:
        """Send a message as the bucket does."""
        one = [
            {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": bucket or self.name}, "object": {"key": key}}}
            for key in (f"landing/{name}" for name in names)
        ]
        self.send(json.dumps({"Records": one}))

    def open(self, **arguments: Any) -> OpenSource:
        given = {"packages": [], "notifications": self.address, **arguments}
        return self.world.open(f"s3://lake@{self.name}/landing", **given)

    def plan(self, **arguments: Any) -> list[str]:
        """The names of the next batch; the position moves on behind it."""
        start, source = self.position, self.open(**arguments)
        end = source.latest_offset(start)
        assert not isinstance(end, Late)
        self.position = end
        read = self.open(**arguments).read(start, end)
        return [] if start == end else [path.partition("/landing/")[2] for path in paths(read)]

    def sees(self, **arguments: Any) -> bool:
        return self.open(**arguments).has_new(self.position)

    def asked(self) -> Counter[str]:
        """What was asked of the bucket and of the queue since the last time."""
        found = Counter(call_of(one) for one in self.proxy.asked)
        self.proxy.asked.clear()
        return found


def call_of(asked: Asked) -> str:
    return asked.headers.get("x-amz-target", asked.kind).removeprefix("AmazonSQS.")
