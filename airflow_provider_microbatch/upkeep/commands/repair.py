"""Repair: mend everything that can be mended without losing or doubling a row, and report everything else."""

from __future__ import annotations

import uuid
from contextlib import suppress
from datetime import UTC, datetime

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.codec import decode_offsets, version_of
from airflow_provider_microbatch.checkpoint.identity import is_checkpoint_id
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.records import encode_record, parse_object, to_bytes, to_json
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import (
    CheckpointError,
    CorruptEntryError,
    DefinitionError,
    MaintenanceError,
    UnknownVersionError,
)
from airflow_provider_microbatch.execution.identity import newest_identity
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.upkeep.commands.draft import Draft
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.rename_source import take_back_half_rename
from airflow_provider_microbatch.upkeep.commands.repair_epochs import repair_attempts, repair_replays
from airflow_provider_microbatch.upkeep.commands.repair_lane import LaneRepair
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from airflow_provider_microbatch.upkeep.source_check import check_sources, has_committed

_METADATA = "metadata"
_IDENTITY = "microbatch/identity"


GIVEN_UP_SECONDS = 60 * 60.0
"""Age in seconds below which a retention is not given up: removing the recorded entries takes only seconds."""


def plan_repair(drafting: Drafting, *, give_up: bool = False) -> Plan:
    """The plan of all possible repairs; everything else is left as a problem.

    :param drafting: the draft of the checkpoint.
    :param give_up: a person states that a retention which has not ended is dead.
    :raises CheckpointError: if the storage itself cannot be read.
    """
    _mend_metadata(drafting)
    _mend_identity(drafting)
    _mend_tables(drafting)
    _mend_refused_plans(drafting)
    take_back_half_rename(drafting)
    recorded = Recorded(drafting.checkpoint)
    for told in recorded.unusable():
        drafting.note(told)
    for name in drafting.checkpoint.lanes():
        _put_back(drafting, name)
        LaneRepair(drafting, recorded, name).run()
    _mend_sources(drafting, recorded)
    if give_up:
        _give_up_retention(drafting)
    repair_attempts(drafting)
    repair_replays(drafting, recorded)
    drafting.sweep()
    said = {problem.where for problem in drafting.plan().problems}
    for finding in verify_all(drafting.checkpoint) + check_sources(drafting.checkpoint):
        if not any(finding.where.startswith(where) or where.startswith(finding.where) for where in said):
            drafting.problem(finding.where, finding.message, finding.repair)
    return drafting.plan()


def _mend_metadata(drafting: Drafting) -> None:
    """Write a missing or torn ``metadata``. Spark needs the file, with any id; batches in tables are known by the id,
    which attempts have on record."""
    store = drafting.store
    data = store.get(_METADATA)
    if data is None:
        if not store.list("offsets") and not store.list("commits"):
            return
        why = "missing; neither Spark nor this package goes on without it"
    else:
        try:
            if is_checkpoint_id(parse_object(data.decode("utf-8", "replace"), where=_METADATA).get("id")):
                return
        except CorruptEntryError:
            pass
        drafting.put_away(_METADATA, "torn")
        why = "in place of the torn one"
    query_id = _recorded_id(drafting)
    if query_id is None:
        query_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{store.location}?{drafting.at_ms}"))
        why += "; with a new id, which no attempt on record contradicts"
    drafting.write(_METADATA, to_bytes(to_json({"id": query_id})), why)


def _recorded_id(drafting: Drafting) -> str | None:
    """The checkpoint id in the batch identity of the newest attempt that records one."""
    checkpoint = drafting.checkpoint
    epochs = checkpoint.attempts.epochs
    for lane in sorted(epochs.lanes(), key=lambda name: name != LIVE):
        for number in reversed(epochs.ids(lane)):
            found = newest_identity(checkpoint, BatchKey(lane, number))
            if found is not None:
                return found.checkpoint
    return None


def _mend_identity(drafting: Drafting) -> None:
    """Write a missing or torn identity from the newest offset entry of this package, since each of them names the
    pipeline."""
    try:
        drafting.checkpoint.identity()
    except UnknownVersionError:
        raise
    except CorruptEntryError:
        drafting.put_away(_IDENTITY, "torn")
    else:
        if drafting.store.get(_IDENTITY) is not None:
            return
    for number in reversed(numbers(sorted(drafting.store.list("offsets"), key=lambda name: (len(name), name)))):
        data, where = drafting.store.get(f"offsets/{number}") or b"", f"offsets/{number}"
        try:
            entry = decode_offsets(data, where=where)
        except CheckpointError:
            continue
        if entry.pipeline is not None:
            values = {
                "pipeline": entry.pipeline,
                "format": version_of(data, where=where),
                "sources": list(entry.ends),
            }
            drafting.write(_IDENTITY, encode_record(values), f"as {where} says")
            return


def _put_back(drafting: Drafting, lane: str) -> None:
    """Put back offset entries that are missing in the log, and lie under a hidden name: a process that was to remove
    its own entry was killed after it had moved another process's entry, to look at it. An attempt knows the batch's
    entry by its digest; any other entry was never planned, or was taken back."""
    checkpoint = drafting.checkpoint
    folder = "offsets" if lane == LIVE else f"lanes/{lane}/offsets"
    planned, committed = checkpoint.lane(lane).offset_log.ids(), set(checkpoint.lane(lane).commit_log.ids())
    for number in checkpoint.attempts.epochs.ids(lane):
        key, path = BatchKey(lane, number), f"{folder}/{number}"
        if number in planned or not (number in committed or (planned and planned[0] < number < planned[-1])):
            continue
        known = newest_identity(checkpoint, key)
        for data in drafting.store.cut_off(path):
            with suppress(CheckpointError):
                entry = decode_offsets(data, where=path)
                if known is not None and checkpoint.batch(key, entry, data).digest == known.digest:
                    drafting.write(path, data, "it lay under a hidden name, where a removal was cut off")
                    break


def _mend_tables(drafting: Drafting) -> None:
    """Move away torn entries with the ids of tables: a table tells its id itself, as long as the table is there. While
    the table may be away, its torn entry stays: the entry keeps runs from looking for the table's batches in an empty
    folder."""
    tables = drafting.checkpoint.tables
    for name, told in list(tables.unreadable()):
        if isinstance(told, UnknownVersionError):
            continue
        path = f"microbatch/tables/{name}"
        without = Draft(drafting.store)
        without.delete(path)
        unknown = Checkpoint(without).tables
        sinks = _known_by(drafting, str(told))
        away = next((found for sink in sinks if (found := sink.seems_away(unknown)) is not None), None)
        if away is None:
            drafting.put_away(path, "torn; the table tells its id again")
        else:
            drafting.problem(
                tables.where(name), f"{told} It cannot be mended now: {away}", "Do that, then run the command again."
            )


def _mend_refused_plans(drafting: Drafting) -> None:
    """Move away torn records of plans that were refused: the next refusal writes the record anew."""
    for lane, told in list(drafting.checkpoint.refused_plans.unreadable()):
        if not isinstance(told, UnknownVersionError):
            drafting.put_away(f"microbatch/refused/{lane}", "torn; the next plan that is refused is recorded anew")


def _known_by(drafting: Drafting, told: str) -> list[OpenSink]:
    """Sinks that look for their table by the torn entry whose error is ``told``."""
    found = []
    with suppress(MaintenanceError):
        for sink in Recorded(drafting.checkpoint).usable():
            try:
                sink.seems_away(drafting.checkpoint.tables)
            except CorruptEntryError as error:
                found += [sink] if str(error) == told else []
    return found


def _mend_sources(drafting: Drafting, recorded: Recorded) -> None:
    """Move away torn entries of facts that sources have learned from their data: sources learn them again, as long as
    the table has no rows that may differ."""
    checkpoint = drafting.checkpoint
    if has_committed(checkpoint):
        return
    with suppress(CheckpointError, DefinitionError):
        for name in recorded.source_names():
            source = recorded.source(name, lane=LIVE)
            for entry, _ in source.torn() if source is not None else ():
                drafting.put_away(f"microbatch/sources/{name}/{entry}", "torn; it is learned again")


def _give_up_retention(drafting: Drafting) -> None:
    """Move away the record of a retention whose process was killed before it had removed all the recorded entries, and
    which no later retention repeats because the pipeline keeps more now: the record keeps users from going back to
    entries that are still there."""
    checkpoint = drafting.checkpoint
    for lane in checkpoint.lanes():
        for name, said_ms in checkpoint.horizons.removing(lane):
            may_be_dead_ms = said_ms + int(GIVEN_UP_SECONDS * 1000)
            if drafting.store.now_ms() > may_be_dead_ms:
                why = "whoever was to remove entries by it is dead, as the user says"
                drafting.put_away(f"microbatch/retained/{lane}/{name}", why)
                continue
            drafting.problem(
                checkpoint.horizons.where(lane, name),
                # The moment, and not its age: a plan that is made again has to be the same.
                f"somebody has begun to remove old entries at {_utc(said_ms)}, and may be alive.",
                f"Wait until it has ended. If it was killed, say this again after {_utc(may_be_dead_ms + 999)}.",
            )


def _utc(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC).isoformat(timespec="seconds")
