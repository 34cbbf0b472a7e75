"""Sinks of topics of the tests' broker, and processes that publish there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.kafka import KafkaSink
from airflow_provider_microbatch.sinks.kafka.opened import OpenKafka
from tests.support import kafka
from tests.support.kafka_stages import Found, settled


@dataclass(frozen=True)
class World:
    """A topic with two partitions, and the folder of its stages."""

    folder: Path
    topic: str

    @classmethod
    def make(cls, folder: Path) -> World:
        return cls(folder, kafka.running().topic(partitions=2))

    def sink(self, **given: Any) -> OpenKafka:
        """Opened anew, as another process has it."""
        made = KafkaSink(self.topic, **{"conn_id": "kafka", "stages": str(self.folder / "stages"), **given})
        found = made.open(SinkContext(connect=kafka.connection))
        assert isinstance(found, OpenKafka)
        return found

    @contextmanager
    def process(self, doing: str, epoch: int, *, point: str, number: signal.Signals, **given: Any) -> Iterator[Process]:
        """One that publishes, replaces or drops, and gets a signal at a point; it is ended at the end. Not a fork: a
        client of the brokers does not survive one.

        :param given: arguments of the sink.
        """
        told = {"topic": self.topic, "folder": str(self.folder), "doing": doing, "epoch": epoch, "point": point}
        asked = json.dumps({**told, "number": int(number), "given": given})
        command = [sys.executable, "-m", "tests.kafka.publisher", asked]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
            try:
                yield Process(started)
            finally:
                started.send_signal(signal.SIGCONT)
                started.kill()

    def records(self) -> list[Found]:
        """What a consumer of committed records finds."""
        return settled(self.topic)

    def values(self) -> list[str]:
        return sorted((one.value or b"").decode() for one in self.records())


@dataclass(frozen=True)
class Process:
    """One that runs."""

    popen: subprocess.Popen[str]

    def wait_until_stopped(self) -> None:
        _, told = os.waitpid(self.popen.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(told), self.popen.communicate()

    def was_killed(self) -> bool:
        told = self.popen.communicate(timeout=120)
        assert self.popen.returncode == -signal.SIGKILL, told
        return True

    def goes_on(self) -> str:
        """What became of it when it woke up: the epoch that is in, or its error."""
        self.popen.send_signal(signal.SIGCONT)
        output, errors = self.popen.communicate(timeout=120)
        assert self.popen.returncode == 0, errors
        return output.splitlines()[-1]


def of(records: Sequence[Found], header: str) -> list[str]:
    """That header of each record."""
    return [one.headers[header] for one in records]
