"""The sink in its surroundings: stages in a folder, marks, and the transactions that publish."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from shlex import quote

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import AttemptFencedError, PublishConflictError, SinkError
from airflow_provider_microbatch.kafka.access import Access
from airflow_provider_microbatch.kafka.cluster import Cluster, Topic
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.runtime.layout import MANIFEST
from airflow_provider_microbatch.settings import make_private_folder
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, Sink, SinkContext
from airflow_provider_microbatch.sinks.file import STAGING
from airflow_provider_microbatch.sinks.file.posix import check_no_link, make_folders
from airflow_provider_microbatch.sinks.file.report import check_files, reporting
from airflow_provider_microbatch.sinks.kafka import JSON, KafkaSink
from airflow_provider_microbatch.sinks.kafka.known_marks import KnownMarks
from airflow_provider_microbatch.sinks.kafka.mark import Mark, encode, key_of
from airflow_provider_microbatch.sinks.kafka.marks import Marks, gone
from airflow_provider_microbatch.sinks.kafka.records import count, records
from airflow_provider_microbatch.sinks.kafka.transaction import FencedError, Transaction
from airflow_provider_microbatch.sinks.staged_in_files import StagedInFiles
from airflow_provider_microbatch.sinks.table_folder import check_writable

log = logging.getLogger(__name__)

_TRIES = 3
"""How often to publish if another publisher of the lane begins meanwhile: one whose stage is dropped gives up."""
_DROPPED = "_dropped"
"""What a stage's manifest is called when the stage is given up, before its publisher is fenced."""
_UNSETTLED_SECONDS = 30.0
"""How much later than its timeout the brokers end a transaction."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Staged:
    """A stage that is whole.

    :param files: data files of the stage, in order.
    """

    manifest: Manifest
    files: Sequence[Path]


class OpenKafka(StagedInFiles):
    """The operations of a topic; see :mod:`airflow_provider_microbatch.sinks.kafka`."""

    def __init__(self, sink: KafkaSink, context: SinkContext) -> None:
        self._sink = sink
        self._files = sink.files
        self._connect, self._at_end = context.connect, context.at_end

    @property
    def definition(self) -> KafkaSink:
        return self._sink

    def check(self) -> None:
        check_writable(self._files.root)  # the stages' folder is no table
        _ = self._topic
        if self._marks.are_there():
            self._marks.check()

    def known_as(self) -> list[str]:
        return [self._topic.id]

    def make_ready(self, tables: KnownTables, *, is_there: Callable[[], bool]) -> None:
        root = self._files.root
        with reporting("make ready", root):
            make_folders(root)
            check_no_link(root, root / STAGING)
            make_private_folder(root / STAGING)
        if not self._known.are_there(tables):
            # Only before anything is in: with a batch on record, marks that are gone are made by nobody.
            if not is_there():
                raise SinkError(gone(self._sink.topic, self._sink.marks_topic))
            self._marks.make(copies=self._topic.copies)
        self._marks.check()
        self._known.make_known(tables, is_there=is_there)

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        stage = self._files.stage(batch, epoch)
        return dataclasses.replace(
            stage,
            writer="airflow_provider_microbatch.runtime.kafka_records:write",
            arguments={
                "path": stage.arguments["path"],
                "format": stage.arguments["format"],
                "json": self._sink.value == JSON,
            },
            reserved_columns=(),
        )

    def manifest(self, batch: BatchIdentity, epoch: int) -> Manifest | None:
        return self._files.manifest(batch, epoch)

    def contains(self, batch: ExpectedBatch) -> Manifest | None:
        mark = self._marks.look(batch.key).mark if self._known.are_there(batch.tables) else None
        return None if mark is None else self._own(batch, mark)

    def batches(self, lane: str, tables: KnownTables) -> list[int]:
        return self._marks.ids(lane) if self._known.are_there(tables) else []

    def batches_after(self, lane: str, number: int, tables: KnownTables) -> Iterable[int]:
        return self._marks.ids(lane, above=number) if self._known.are_there(tables) else []

    def seems_away(self, tables: KnownTables) -> str | None:
        # Of brokers that do not answer nothing is known; whoever asks them for a batch is told that.
        with suppress(SinkError):
            return self._known.away(tables)
        return None

    def is_table_of(self, before: Sink, tables: KnownTables) -> bool:
        # By another list of brokers, or another connection: the topic's id is on record with the address.
        is_so_named = isinstance(before, KafkaSink) and before.topic == self._sink.topic
        return is_so_named and self._known.is_known(tables, at=before.location())

    def unrecorded(self, batch: ExpectedBatch, wrote: Sequence[Sink]) -> str | None:
        # By what is on record alone: which marks are left tells nothing, since old ones may have aged out.
        if not any(self.is_written_by(one, batch.tables) for one in wrote):
            return None
        seen = self._marks.look(batch.key) if self._known.are_there(batch.tables) else None
        if seen is None or seen.mark is not None:
            return None
        if seen.topic_id != self._topic.id and not self._known.is_known(batch.tables):
            return None  # it was published to a topic that was removed since
        left = (
            f"{self._sink.marks_topic} has no mark of batch {batch.key}, and {self._sink.topic} is the very topic that "
            "it was published to: its records are there, and published again they would be in it twice. Bring the mark "
            "back."
        )
        if seen.top > batch.key.id:
            # No rewind: marks of the batches behind it are there, of plans that would be others then.
            return f"{left} Or leave the batch as it is, and mark its task as succeeded: later batches go on so."
        if not all(self.is_written_by(one, batch.tables) for one in wrote):
            # A rewind would leave the batch in the tables beside, or have them lose it for what stays here.
            return (
                f"{left} No rewind goes on without it, since the batch went to other tables, too. Or go on with a new "
                f"topic; or leave {self._sink.topic} out of the pipeline for one batch (where it takes the dead "
                "letters, name another table for them), and name it again then: that one batch never gets here, and "
                "later ones do."
            )
        to = min(seen.top, batch.key.id - 1)
        if not batch.can_rewind_to(to):
            return (
                f"{left} The log does not go back to before those whose marks are gone, so no rewind goes on without "
                "them. Or go on with a new topic; or with a new checkpoint, whose position `microbatch set-offset` "
                "puts behind what is in."
            )
        # Without --drop-output: no record is taken out.
        rewind = self._rewind(batch, to)
        return (
            f"{left} Or have the log go on without it: {rewind}, and `microbatch set-offset … --allow-skip` sets each "
            "source behind what is in. Or, if the batch's records were deleted there, that rewind alone has them "
            "published again."
        )

    def publish(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        return self._bring_in(batch, epoch, replay=False)

    def replace(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        found = self._bring_in(batch, epoch, replay=True)
        if found.epoch != epoch:
            raise PublishConflictError(
                f"batch {batch.key}: attempt {found.epoch} is published, which is later than attempt {epoch}. "
                "Nothing was replaced."
            )
        return found

    def withdraw(self, batch: ExpectedBatch, epoch: int) -> bool:
        if self.contains(batch) is None:
            return False
        raise SinkError(
            f"batch {batch.key} is in {self.location()}, and records that are read cannot be taken back. "
            "Nothing was done."
        )

    def drop_stage(self, batch: BatchIdentity, epoch: int) -> bool:
        """Drop the stage. If it was whole, somebody may be about to publish it: this publisher finds the manifest gone
        when it begins, or is fenced if it has begun."""
        stage = self._stage_folder(batch, epoch)
        with reporting("drop a stage of", batch.key):
            check_no_link(self._files.root, stage)
            if (stage / MANIFEST).is_dir() and not (stage / _DROPPED).exists():
                (stage / MANIFEST).rename(stage / _DROPPED)
            given_up = (stage / _DROPPED).exists()
        if given_up:
            # Whoever fences this one has fenced all before it, too.
            with suppress(FencedError), self._transaction(batch.key, epoch).fencing():
                pass
        return self._files.drop_stage(batch, epoch)

    def stages(self, checkpoint: str) -> list[tuple[BatchKey, int]]:
        return self._files.stages(checkpoint)

    def _bring_in(self, batch: ExpectedBatch, epoch: int, *, replay: bool) -> Manifest:
        found = self.contains(batch)
        if found is None or not _stands(found, epoch, replay=replay):
            found = self._publish(batch, self._staged(batch, epoch), replay=replay)
        if found.epoch == epoch:
            self._files.drop_stage(batch.staged, epoch)
        return found

    def _publish(self, batch: ExpectedBatch, staged: Staged, *, replay: bool) -> Manifest:
        epoch = staged.manifest.epoch
        self._marks.check()
        for _ in range(_TRIES):
            try:
                with self._transaction(batch.key, epoch).fencing() as transaction:
                    return self._publish_fencing(batch, staged, transaction, replay=replay)
            except FencedError as error:
                log.warning("batch %s attempt %s: another publisher has begun (%s)", batch.key, epoch, error)
                if error.late is not None:
                    found = self.contains(batch)
                    if found is None or not _stands(found, epoch, replay=replay):
                        raise error.late from error
                    return found
        raise AttemptFencedError(
            f"batch {batch.key} attempt {epoch}: other publishers of lane {batch.key.lane} of {self.location()} began "
            f"{_TRIES} times while it was published. Nothing was published; look who else publishes there."
        )

    def _publish_fencing(
        self, batch: ExpectedBatch, staged: Staged, transaction: Transaction, *, replay: bool
    ) -> Manifest:
        """Publish the whole batch or nothing. Whoever was publishing is fenced: what is in now is in for good, and
        what is not in comes in by nobody else."""
        seen, own = self._marks.look(batch.key), staged.manifest
        found = None if seen.mark is None else self._own(batch, seen.mark)
        if found is not None and _stands(found, own.epoch, replay=replay):
            return found
        if found is not None and (why := self._sink.not_replaceable()) is not None:
            raise SinkError(f"batch {batch.key} is in, by attempt {found.epoch}, and {why}. Nothing was published.")
        if self._files.manifest(batch.staged, own.epoch) is None:
            raise AttemptFencedError(
                f"the stage of batch {batch.key} attempt {own.epoch} was dropped while it was about to be published: "
                "another has taken its place. Nothing was published."
            )
        replaces = None if found is None else found.epoch
        before = {self._topic.id, seen.topic_id}
        topic, begin = self._look_before(batch, before)
        transaction.send(
            records(staged.files, own, replaces=replaces), rows=count(staged.files), partitions=len(topic.partitions)
        )
        # The client may have sent to partitions that came meanwhile: whoever reads by the mark must find all records.
        topic, end = self._look_before(batch, before)
        between = {number: (begin.get(number, 0), at) for number, at in end.items()}
        top = max(seen.top, batch.key.id)
        mark = Mark(manifest=own, top=top, topic_id=topic.id, offsets=between, behind=seen.end, marks_id=seen.marks_id)
        transaction.mark(key=key_of(self._sink.topic, batch.key), value=encode(mark))
        transaction.commit()
        return own

    def _look_before(self, batch: ExpectedBatch, before: set[str | None]) -> tuple[Topic, dict[int, int]]:
        """The topic as it is now, and the ends of its partitions.

        :param before: ids that it had before. In a topic that was made again a batch would hide that those before it
            are gone: each run looks for the newest alone.
        :raises SinkError: if it has another id by now.
        """
        topic = self._topic_of_now()
        if before - {None, topic.id}:
            raise SinkError(
                f"the topic {topic.name} was removed and made again before batch {batch.key} was published. Nothing "
                "was published. Run the batch again: if the topic had any batch, that is said then, with the ways on."
            )
        ends = self._cluster.highest((topic.name, number) for number in topic.partitions)
        return topic, {number: at for (_, number), at in ends.items()}

    def _own(self, batch: ExpectedBatch, mark: Mark) -> Manifest:
        found = batch.check(mark.manifest, where=self.location(), can_withdraw=self._sink.can_withdraw)
        if mark.topic_id != self._topic.id:
            raise SinkError(
                f"batch {batch.key} was published to another topic {self._sink.topic}, which had the id "
                f"{mark.topic_id}: the topic was removed and made again, without what it had. To have everything "
                f"published again, remove {self._sink.marks_topic} too; then {self._rewind(batch, -1)} has the batches "
                "run again, as far as their sources have them. That is refused where retention has removed the oldest "
                "from the log: begin a new checkpoint there, which reads what its sources have."
            )
        return found

    @staticmethod
    def _rewind(batch: ExpectedBatch, to: int) -> str:
        lane = "" if batch.key.lane == LIVE else f" --lane {batch.key.lane}"
        return f"`microbatch rewind {quote(batch.identity.location)} --to {to}{lane}`"

    def _staged(self, batch: ExpectedBatch, epoch: int) -> Staged:
        folder = self._stage_folder(batch.staged, epoch)
        manifest = self._files.manifest(batch.staged, epoch)
        if manifest is None:
            raise SinkError(
                f"batch {batch.key} attempt {epoch} has no complete stage at {folder}. Run the batch again."
            )
        with reporting("read the stage of", batch.key):
            batch.check_stage(manifest, where=str(folder))
            check_files(folder, manifest)
        return Staged(manifest=manifest, files=[folder / name for name in sorted(manifest.files)])

    def _stage_folder(self, batch: BatchIdentity, epoch: int) -> Path:
        return Path(self._files.stage(batch, epoch).report.removeprefix("file://"))

    def _transaction(self, key: BatchKey, epoch: int) -> Transaction:
        return Transaction(self._sink, self._access, lane=key.lane, what=f"batch {key} attempt {epoch}")

    @cached_property
    def _access(self) -> Access:
        if self._sink.conn_id is not None:
            return Access.of_connection(self._connect(self._sink.conn_id), failed=SinkError)
        return Access.of_servers(self._sink.bootstrap_servers or "", failed=SinkError)

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(self._access, timeout=self._sink.timeout, committed_only=True)

    @cached_property
    def _topic(self) -> Topic:
        """The topic as this task has found it."""
        return self._topic_of_now()

    def _topic_of_now(self) -> Topic:
        found = self._cluster.topics([self._sink.topic]).get(self._sink.topic)
        if found is None:
            raise SinkError(
                f"there is no topic {self._sink.topic} at {self._access.servers}, or this user may not see it. Make "
                "it, with as many partitions as its consumers need."
            )
        return found

    @cached_property
    def _known(self) -> KnownMarks:
        return KnownMarks(self._sink, self._cluster)

    @cached_property
    def _marks(self) -> Marks:
        marks = Marks(
            self._cluster,
            self._access,
            topic=self._sink.topic,
            name=self._sink.marks_topic,
            timeout=self._sink.timeout,
            wait_seconds=self._sink.transaction_seconds + _UNSETTLED_SECONDS,
        )
        self._at_end(marks.close)
        return marks


def _stands(found: Manifest, epoch: int, *, replay: bool) -> bool:
    """Whether what is published stays as it is."""
    return not replay or found.epoch >= epoch
