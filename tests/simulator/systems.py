"""What the simulator's pipelines can live in: the systems of all tests, and topics of the world's brokers, which no
other process could reach."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.key import LETTERS, BatchKey
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.runtime.job import Job, Read
from airflow_provider_microbatch.sinks import OpenSink, Sink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.kafka import KafkaSink
from airflow_provider_microbatch.sinks.kafka.opened import OpenKafka
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.file.open import OpenFileSource
from tests.simulator.broker import Broker, Topic
from tests.simulator.stateful import StatefulFiles
from tests.support.system import FilesOnPosix, Row, System, batches_in
from tests.support.systems import SYSTEMS as OF_ALL_TESTS
from tests.support.table_systems import FilesIntoDelta, FilesIntoDeltaInBucket, FilesIntoIceberg, Looks

TOPIC, MARKS = "orders", "orders-microbatch"
TRANSACTION_SECONDS = 40.0


@dataclass(frozen=True, kw_only=True)
class Published:
    """An attempt's records of a batch, in the order of their rows.

    :param checkpoint: whose batch it is.
    :param replaces: the attempts whose records it says are in the topic already.
    """

    checkpoint: str
    key: BatchKey
    epoch: int
    replaces: Set[str]
    rows: Sequence[Row]
    numbers: Sequence[int]


class FilesIntoTopic(FilesOnPosix):
    """Files that land, and the world's topic, which refuses a batch that is in."""

    on_replay: ClassVar[str] = "fail"
    broker: Broker
    is_cut_off = False
    """Whether the topics are as they were once, under the same ids: nothing says then that records are gone."""
    _saved_topics: Mapping[str, Topic] | None = None

    def sink(self) -> Sink:
        connections.find_by(_brokers)
        return KafkaSink(
            TOPIC,
            conn_id="kafka",
            stages=str(self._root / "lake"),
            on_replay=self.on_replay,
            transaction_seconds=TRANSACTION_SECONDS,
            timeout=10.0,
        )

    def live_in(self, broker: Broker) -> None:
        """These are the world's brokers."""
        self.broker = broker
        if TOPIC not in broker.topics:
            broker.make(TOPIC, partitions=2, policy="delete")

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        """Of a batch that is in twice, what the newest attempt has made, as the headers tell a consumer."""
        found = dict[BatchKey, list[Row]]()
        for one in sorted(self.attempts(), key=lambda one: one.epoch):
            found[one.key] = list(one.rows)
        return [found]

    def attempts(self) -> list[Published]:
        """All that was ever committed to the topic, in the order of their first records."""
        found = dict[tuple[str, str, int], list[tuple[int, dict[str, str], Row]]]()
        for _, _, record in self.broker.committed(TOPIC):
            headers = {name: (value or b"").decode() for name, value in record.headers}
            place = headers["microbatch-checkpoint"], headers["microbatch-batch"], int(headers["microbatch-attempt"])
            row = int(headers["microbatch-row"]), headers, json.loads(record.value or b"")
            found.setdefault(place, []).append(row)
        return [_published(*place, rows) for place, rows in found.items()]

    def take_away(self) -> bool:
        return False

    def save_table(self) -> bool:
        self._saved_topics, self.is_cut_off = self.broker.saved((TOPIC, MARKS)), False
        shutil.rmtree(self._saved, ignore_errors=True)
        if (self._root / "lake").exists():
            shutil.copytree(self._root / "lake", self._saved, symlinks=True)
        return True

    def restore_table(self) -> None:
        assert self._saved_topics is not None
        super().restore_table()
        self.broker.restore(dict(self._saved_topics), (TOPIC, MARKS))
        self.is_cut_off = True

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, OpenKafka, "sink"), (OpenSource, OpenFileSource, "source"))


def _brokers(conn_id: str) -> Connection:
    return Connection(conn_id=conn_id, conn_type="kafka", extra={"bootstrap.servers": "brokers:9092"})


def _published(checkpoint: str, batch: str, epoch: int, rows: list[tuple[int, dict[str, str], Row]]) -> Published:
    lane, _, number = batch.partition("/")
    rows.sort(key=lambda one: one[0])
    return Published(
        checkpoint=checkpoint,
        key=BatchKey(lane, int(number)),
        epoch=epoch,
        replaces={headers.get("microbatch-replaces", "") for _, headers, _ in rows} - {""},
        rows=[row for _, _, row in rows],
        numbers=[number for number, _, _ in rows],
    )


class FilesIntoTopicAgain(FilesIntoTopic):
    """The same into a topic that takes a batch once more."""

    on_replay: ClassVar[str] = "append"


class FilesIntoTopicAndTable(FilesIntoTopic):
    """The same into a topic and a table of files behind it, each of which gets all rows."""

    def sink(self) -> Sink:
        return Sinks({"orders": super().sink(), "copies": FileSink(self.table_behind, format="json")})

    @property
    def table_behind(self) -> str:
        """Folder of the table behind the topic."""
        return str(self._root / "copies")

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        return [*super().published(), batches_in(Path(self.table_behind))]

    def save_table(self) -> bool:
        saved = Path(f"{self.table_behind} that were saved")
        shutil.rmtree(saved, ignore_errors=True)
        if Path(self.table_behind).exists():
            shutil.copytree(self.table_behind, saved, symlinks=True)
        return super().save_table()

    def restore_table(self) -> None:
        super().restore_table()
        saved = Path(f"{self.table_behind} that were saved")
        shutil.rmtree(self.table_behind, ignore_errors=True)
        if saved.exists():
            shutil.copytree(saved, self.table_behind, symlinks=True)

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return (*super().operations(), (OpenSink, FileSink, "sink"))


class FilesIntoTopicAgainAndTable(FilesIntoTopicAndTable):
    """The same into a topic that takes a batch once more."""

    on_replay: ClassVar[str] = "append"


class FilesIntoTopicAndLetters(FilesIntoTopicAndTable):
    """The same into a topic that takes a batch once more; every third row is a dead letter, in a table behind the
    topic, until it is run again."""

    on_replay: ClassVar[str] = "append"

    def sink(self) -> Sink:
        return FilesIntoTopic.sink(self)

    def arguments(self) -> dict[str, Any]:
        """What the pipeline has for them."""
        return {
            "dead_letters": FileSink(self.table_behind, format="json"),
            "expect": {"id % 3 <> 2": "dead_letter"},
        }

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        """A row that was run again is no letter any more."""
        (found, letters), again = super().published(), set[int]()
        merged = {key: list(rows) for key, rows in found.items()}
        for key, rows in found.items():
            again |= {row["id"] for row in rows} if key.lane == LETTERS else set()
        for key, rows in letters.items():
            merged.setdefault(key, []).extend(row for row in rows if row["id"] not in again)
        return [merged]

    def rows_into(self, job: Job, name: str, rows: Sequence[Row]) -> Sequence[Row]:
        return [row for row in rows if _is_letter(job, row) is not (name in job.tables)]

    def told_beside(self, job: Job, rows: Sequence[Row]) -> Mapping[str, Any]:
        return {"numDeadLetters": sum(_is_letter(job, row) for row in rows), "numDroppedRows": 0}

    def _read(self, source: Read) -> tuple[list[Row], Mapping[str, Any]]:
        if "parts" not in source.arguments:
            return super()._read(source)
        paths = [Path(path.removeprefix("file://")) for part in source.arguments["parts"] for path in part["paths"]]
        files = [file for path in paths for file in (sorted(path.glob("part-*")) if path.is_dir() else [path])]
        return [json.loads(line) for file in files for line in file.read_text().splitlines()], {}


def _is_letter(job: Job, row: Row) -> bool:
    return job.lane != LETTERS and row["id"] % 3 == 2


TOPICS: Mapping[str, Callable[[Path], System]] = {
    "topic": FilesIntoTopic,
    "topic-again": FilesIntoTopicAgain,
    "topic-and-table": FilesIntoTopicAndTable,
    "topic-again-and-table": FilesIntoTopicAgainAndTable,
    "topic-and-letters": FilesIntoTopicAndLetters,
}
STATE = "state"


def _in_this_process(made: Callable[[Path], System]) -> Callable[[Path], System]:
    """Nobody is forked in a world, and looks are many: no other process has to look at a table."""

    def make(root: Path) -> System:
        system = made(root)
        if isinstance(system, (FilesIntoDelta, FilesIntoDeltaInBucket, FilesIntoIceberg)):
            system.looks = Looks()
        return system

    return make


SYSTEMS: Mapping[str, Callable[[Path], System]] = {
    **{name: _in_this_process(made) for name, made in OF_ALL_TESTS.items()},
    **TOPICS,
    STATE: StatefulFiles,
}
