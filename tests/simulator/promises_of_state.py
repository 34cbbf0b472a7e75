"""What is promised of state: each batch in the table was made from the state that the batch before it in the table has
left, as in a run that nobody disturbed; that state can be read; and nothing lies there for nobody."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.execution.retention import retained
from airflow_provider_microbatch.execution.state_files import MARGIN_MS
from airflow_provider_microbatch.execution.stateful import STATES_KEPT
from airflow_provider_microbatch.execution.told_state import published_result
from airflow_provider_microbatch.runtime.streaming_folder import STATE
from airflow_provider_microbatch.sinks import OpenSink
from tests.simulator.state_files import Partition, parts_of
from tests.simulator.stateful import OPERATOR, PARTITIONS, StatefulFiles
from tests.simulator.world import Broken

if TYPE_CHECKING:
    from tests.simulator.subject import Subject


def look_at_state(subject: Subject) -> None:
    """At any moment but while the table is another one than the checkpoint's, or a command is at work."""
    if not isinstance(subject.system, StatefulFiles) or subject.kept is not None or subject.table_is_older:
        return
    checkpoint = subject.checkpoint()
    if subject.is_away or subject.state_is_older or checkpoint.maintenance.unfinished() is not None:
        return
    _look_at_chain(subject.system, checkpoint)
    newest = checkpoint.commit_log.latest_id()
    if newest is not None:
        _look_at_files(subject, checkpoint, newest)


def look_at_state_at_rest(subject: Subject) -> None:
    """When nobody is at work any more."""
    if not isinstance(subject.system, StatefulFiles):
        return
    checkpoint = subject.checkpoint()
    ids = checkpoint.commit_log.ids()
    if not ids:
        return
    _look_at_rows(subject.system, ids[-1])
    kept = ids if retained(checkpoint, LIVE) is not None else ids[-STATES_KEPT:]
    needed = {file for number in kept for file in _look_at_files(subject, checkpoint, number)}
    _look_at_leftovers(subject, checkpoint, needed)


def _look_at_chain(system: StatefulFiles, checkpoint: Checkpoint) -> None:
    """The table's batches have gone on from each other: each from the attempt that is in the table, whoever else has
    made the batch."""
    told = system.told()
    for key, markers in sorted(told.items(), key=lambda one: one[0].id):
        before = told.get(BatchKey(LIVE, key.id - 1)) if key.id else None
        for number in range(PARTITIONS):
            if key.id == 0:
                wanted = []
            elif before is None:
                continue
            else:
                wanted = [*before[number]["history"], before[number]["by"]]
            if markers[number]["history"] != wanted:
                raise Broken(
                    "a batch has gone on from another state",
                    f"{key} partition {number}: from {markers[number]['history']}, and the table has {wanted}",
                )


def _look_at_rows(system: StatefulFiles, newest: int) -> None:
    """As in a run that nobody disturbed the state has all rows of the batches before, each once, and what waits in it
    is told by the batch after; the watermark has gone on by all of them."""
    told, (table,) = system.told(), system.published()
    known: dict[int, set[int]] = {number: set() for number in range(PARTITIONS)}
    held: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for number in range(newest + 1):
        key = BatchKey(LIVE, number)
        watermark = sum(map(len, known.values()))
        for partition, marker in told[key].items():
            rows = {row["id"] for row in table[key] if row["id"] % PARTITIONS == partition}
            if marker["known"] != sorted(known[partition]) or not rows.issuperset(held[partition]):
                raise Broken(
                    "state of another run",
                    f"{key} partition {partition}: {marker['known']}, not {sorted(known[partition])}; "
                    f"told {sorted(rows)}, waiting were {held[partition]}",
                )
            if marker["watermark"] != watermark:
                raise Broken("watermark of another run", f"{key}: {marker['watermark']}, not {watermark}")
            known[partition] |= (rows - set(held[partition])) | set(marker["held"])
            held[partition] = marker["held"]


def _look_at_files(subject: Subject, checkpoint: Checkpoint, number: int) -> set[Path]:
    """The files of the state that the batch after this one goes on from.

    :raises Broken: if one is not there.
    """
    state = _left_by(checkpoint, subject.execution().planner.sink, number)
    if state is None:
        return set()
    found = set[Path]()
    for partition, ids in enumerate(state["ids"][OPERATOR]):
        try:
            found |= Partition(_folder(subject) / OPERATOR / str(partition)).files(number + 1, ids[0])
            for file in found:
                file.stat()
        except OSError as error:
            raise Broken("state lost", f"of batch {number} of {subject.name}: {error}") from error
    return found


def _left_by(checkpoint: Checkpoint, sink: OpenSink, number: int) -> Any:
    return published_result(checkpoint, BatchKey(LIVE, number), [sink]).get("state")


def _look_at_leftovers(subject: Subject, checkpoint: Checkpoint, needed: set[Path]) -> None:
    """Behind a commit. Files of batches before it, as far as the logs go back, are those that a later batch has gone on
    from; and parts of snapshots are those that an attempt may yet name."""
    log, state = checkpoint.commit_log, _folder(subject)
    newest, files = log.latest_id() or 0, sorted(file for file in state.rglob("*") if file.is_file())
    old = {file for file in files if file.suffix != ".sst" and log.ids()[0] <= _batch_of(file) < newest}
    left = sorted(old - needed)
    named = {part for file in files if file.suffix == ".zip" for part in parts_of(file)}
    before = log.get(newest - 1)
    cut = 0 if before is None else (before.committed_ms or 0) - MARGIN_MS
    left += [
        file for file in files if file.suffix == ".sst" and file.name not in named and file.stat().st_mtime * 1000 < cut
    ]
    if left:
        raise Broken("state for nobody", f"{[str(file.relative_to(state)) for file in left]} of {subject.name}")
    remains = list((state.parent / "streaming").glob("*"))
    if remains:
        raise Broken("an attempt's own folder is left", f"{remains} of {subject.name}")


def _folder(subject: Subject) -> Path:
    return Path(subject.store().for_spark.removeprefix("file://")) / STATE


def _batch_of(file: Path) -> int:
    return int(file.name.partition("_")[0].lstrip(".")) - 1
