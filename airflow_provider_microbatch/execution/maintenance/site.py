"""What a checkpoint tells of its pipeline when nobody has the DAG file: sources, sinks, who is alive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError, MaintenanceError
from airflow_provider_microbatch.execution.execution import now_ms
from airflow_provider_microbatch.execution.identity import expected_on_record, found_in
from airflow_provider_microbatch.execution.liveness import EngineOf, sign_of_life
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, Sink
from airflow_provider_microbatch.sources import OpenSource, Source, SourceContext


@dataclass(frozen=True, kw_only=True)
class Published:
    """A batch as the sink has it.

    :param manifest: what is published.
    :param sink: the sink it is in.
    """

    manifest: Manifest
    sink: Sink


class Recorded:
    """The pipeline as its attempts ran it.

    :param checkpoint: where the definitions lie.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._sinks: list[Sink] | None = None

    def published(self, key: BatchKey) -> Published | None:
        """The batch in the table, or None: it is in no sink that any attempt has ever written to. What another
        checkpoint, or another plan, put at its place is not the batch.

        :raises MaintenanceError: if no pipeline is on record, so that nobody knows the sink.
        :raises SinkError: if the sink cannot tell.
        """
        batch = expected_on_record(self._checkpoint, key)
        for sink in self.sinks():
            manifest = found_in(sink, batch)
            if manifest is not None:
                return Published(manifest=manifest, sink=sink)
        return None

    def whatever_is_at(self, key: BatchKey) -> list[Published]:
        """What the sinks have under the batch's number, whosever it is."""
        anything = ExpectedBatch(identity=BatchIdentity.at(key), recognise=lambda found: found)
        found = [(sink.contains(anything), sink) for sink in self.sinks()]
        return [Published(manifest=manifest, sink=sink) for manifest, sink in found if manifest is not None]

    def of_another_life(self, key: BatchKey) -> Published | None:
        """What this checkpoint published under the number by a plan that it does not know any more: it was restored
        from an older backup. None if there is nothing of the kind."""
        own = self._checkpoint.identity()
        for found in self.whatever_is_at(key):
            made = found.manifest.identity
            if made is not None and own is not None and made.checkpoint == own.query_id:
                return None if self.published(key) is not None else found
        return None

    def batches(self, lane: str) -> list[int]:
        """Ids that something is published under in any sink, whosever it is, ascending.

        :raises SinkError: if a sink cannot tell.
        """
        return sorted({number for sink in self.sinks() for number in sink.batches(lane)})

    def sinks(self) -> list[Sink]:
        """All sinks of the checkpoint, each once.

        :raises MaintenanceError: if none is on record.
        """
        if self._sinks is None:
            found: dict[str, Sink] = {}
            definitions = self._checkpoint.definitions
            for name in definitions.names():
                recorded = definitions.sink(name)
                if recorded is not None and str(recorded) not in found:
                    found[str(recorded)] = Sink.from_dict(recorded)
            self._sinks = list(found.values())
        if not self._sinks:
            raise MaintenanceError(
                f"{self._checkpoint.location} has no pipeline on record: none of this package has run an attempt here, "
                "so nobody can ask the sink which batches are in it."
            )
        return self._sinks

    def source(self, name: str) -> OpenSource | None:
        """The source beside the checkpoint; None if the newest attempt on record had none of that name."""
        known = {self._checkpoint.names.of(one): found for one, found in self.arguments().get("sources", {}).items()}
        recorded = known.get(name)
        if recorded is None:
            return None
        context = SourceContext(
            name=name,
            log=self._checkpoint.source_log(name),
            state=self._checkpoint.source_state(name),
            clock_ms=now_ms,
        )
        return Source.from_dict(recorded).open(context)

    def arguments(self) -> Mapping[str, Any]:
        """Arguments of the pipeline as the newest attempt that can be read ran it; empty if there is none."""
        attempts, definitions = self._checkpoint.attempts, self._checkpoint.definitions
        for lane in sorted(attempts.epochs.lanes(), key=lambda name: name != LIVE):
            for number in reversed(attempts.epochs.ids(lane)):
                key = BatchKey(lane, number)
                for epoch in reversed(attempts.epochs.all(key)):
                    try:
                        attempt = attempts.get(key, epoch)
                        found = definitions.get(attempt.definition) if attempt and attempt.definition else None
                    except CheckpointError:
                        continue
                    if found is not None:
                        arguments: Mapping[str, Any] = found["arguments"]
                        return arguments
        # No attempt was ever opened: then a plan that was refused has left the pipeline.
        left = [definitions.get(name) for name in definitions.names()]
        return next((found["arguments"] for found in left if found is not None), {})


def alive(checkpoint: Checkpoint, engine_of: EngineOf) -> list[str]:
    """Everybody who is at a batch, in words: a lease that runs, or an engine that says so. A stage that waits for its
    audits counts.

    :raises EngineError: if an engine cannot be asked.
    """
    suspects = set(checkpoint.leases.unfinished())
    for name in checkpoint.lanes():
        lane = checkpoint.lane(name)
        for number in {lane.offset_log.latest_id(), lane.commit_log.latest_id()} - {None}:
            assert number is not None
            key = BatchKey(name, number)
            suspects.update({(key, epoch) for epoch in [checkpoint.attempts.latest_epoch(key)] if epoch})
    found = []
    for key, epoch in sorted(suspects):
        sign = _sign(checkpoint, key, epoch, engine_of)
        if sign is not None:
            found.append(f"{key} attempt {epoch} ({sign})")
    return found


def _sign(checkpoint: Checkpoint, key: BatchKey, epoch: int, engine_of: EngineOf) -> str | None:
    try:
        attempt = checkpoint.attempts.get(key, epoch)
        if attempt is not None:
            return sign_of_life(checkpoint, attempt, engine_of, parked=True)
        seconds = checkpoint.leases.remaining_seconds(key, epoch, parked=True)
    except CheckpointError:
        return None  # torn: what cannot be read is what `repair` is for, and its holder could not read it either
    return f"it is being opened, its lease runs for another {seconds:.0f} s" if seconds > 0 else None
