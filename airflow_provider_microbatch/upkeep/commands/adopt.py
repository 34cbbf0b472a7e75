"""Adopt: a person states that the output in the table under a batch's number is the output of this batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

from airflow_provider_microbatch.checkpoint.adoptions import Adoption, Adoptions
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import MaintenanceError, MicroBatchError
from airflow_provider_microbatch.execution.opened_sources import Ranges
from airflow_provider_microbatch.execution.position import render, starts_of
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.sinks.manifest import counted_over
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.site import Published, Recorded
from airflow_provider_microbatch.upkeep.commands.stateless import check_stateless


def plan_adopt(drafting: Drafting, key: BatchKey, *, allow_skip: bool = False) -> Plan:
    """The plan that makes the table's batch count as this checkpoint's. The next run commits the batch without running
    it.

    Only a planned batch can adopt: its range is what the pipeline then does not read, and a person can look at the
    range.

    :param allow_skip: adopt even if nothing proves that the output was made of exactly the planned data.
    :raises MaintenanceError: if the batch is not planned, or the table has nothing under its number, or only a part of
        something.
    """
    checkpoint = drafting.checkpoint
    recorded = Recorded(checkpoint)
    entry = checkpoint.lane(key.lane).offset_log.get(key.id)
    if entry is None:
        raise MaintenanceError(
            f"batch {key} is not planned in {checkpoint.location}: nobody knows which range would not be read. Give "
            f"the pipeline another path or table, or have it count on behind this one by "
            f"`microbatch start-behind {quote(checkpoint.location)}`."
        )
    if entry.unresolved:
        raise MaintenanceError(
            f"batch {key} was planned without an end in source {', '.join(entry.unresolved)}: nobody knows which rows "
            "of it the adopted output holds, and the next batch would read them again. Nothing was done."
        )
    if recorded.everywhere(key):
        drafting.note(f"what is in the table under batch {key} is this checkpoint's own.")
        return drafting.plan()
    found = recorded.whatever_is_at(key)
    parts = [] if found else recorded.whatever_is_at(key, partly=True)
    if parts:
        raise MaintenanceError(
            f"readers of {parts[0].sink.location()} find only a part of what is there under batch {key}. That is not "
            "in: were it adopted, the next run would put it away for what it makes of its own range. Nothing was done. "
            "Bring the rest of it back there, as it was, and type this again; or choose another way of those that the "
            "batch's run names."
        )
    if not found:
        alone = recorded.in_one_table(key)
        if alone:
            where = " and ".join(one.sink.location() for one in alone)
            raise MaintenanceError(
                f"what is there under batch {key} is in {where} alone, and not in the tables that the pipeline writes "
                f"to together with that: adopted, it would never come into these. Nothing was done. Name {where} for "
                "this batch, and no other table (nor dead_letters=… elsewhere), let the pipeline run once, which is "
                "refused, and type this again; or choose another way of those that the batch's run names."
            )
        raise MaintenanceError(f"nothing is in the table under batch {key}, so there is nothing to adopt.")
    if len(found) > 1:
        tables = " and ".join(one.sink.location() for one in found)
        raise MaintenanceError(
            f"batch {key} is in {tables}, and neither is this checkpoint's: nobody knows which counts."
        )
    check_stateless(checkpoint, recorded)
    manifest = found[0].manifest
    starts = starts_of(checkpoint.lane(key.lane), key.id, entry)
    others = [] if allow_skip else list(_differences(recorded, key, Ranges(starts, entry.ends), manifest))
    if others:
        raise MaintenanceError(
            f"batch {key}: {'; '.join(others)}. Adopted, what is planned and is not in the output would be read by no "
            f"batch, and end in no table. {_given_up(checkpoint, key, found[0])}; with --allow-skip it is adopted all "
            "the same, by whoever knows that its rows are those of what is planned."
        )
    whose = f"{manifest.identity}" if manifest.identity else "a version that did not say whose a batch is"
    path = f"adopted/{Adoptions.path(key)}"
    drafting.put_away(path, "another one is adopted")
    sink = found[0].sink.definition.to_dict()
    adoption = Adoption(identity=manifest.identity, epoch=manifest.epoch, sink=sink)
    drafting.write(
        path, Adoptions.encode(adoption, trail=drafting.trail), f"what {whose} published counts as batch {key}"
    )  # fmt: skip
    drafting.note(
        f"batch {key} is not run: what its sources have from {render(starts)} to {render(entry.ends)} counts as read, "
        "and a source with clean_source gives it up. Its rows are in the table only if it is what was read there."
    )
    return drafting.plan()


def _given_up(checkpoint: Checkpoint, key: BatchKey, found: Published) -> str:
    """How all that is planned is read after all."""
    rewind = f"rewind --to {key.id - 1}"
    if any(table.definition.keeps_for_good for table in found.sink.tables):
        way = counted_over(checkpoint.location, key.lane)
        given_up = f"{command(checkpoint.lane(key.lane), rewind)} gives the plan up"
        return given_up if way is None else f"{given_up}; {way}"
    return (
        f"{command(checkpoint.lane(key.lane), f'{rewind} --drop-output')} takes the output out and has all of it read"
    )


def _differences(recorded: Recorded, key: BatchKey, ranges: Ranges, manifest: Manifest) -> Iterator[str]:
    """The reasons why it is not proved that the output was made of exactly the planned data. An equal amount of data is
    no proof."""
    told = manifest.made_of
    for name in ranges.ends:
        if ranges.starts.get(name) == ranges.ends[name]:
            continue
        try:
            source = _asked(recorded, name, key)
            planned = None if source is None else source.known_as(*ranges.of(name))
            amount = {} if source is None else source.in_words(*ranges.of(name))
        except MicroBatchError as error:
            yield f"which data of source {name!r} is planned cannot be told: {error}"
            continue
        if planned is None:
            yield f"source {name!r} cannot tell whether the output was made of what is planned of it"
        elif name not in told:
            yield f"the output does not tell what of source {name!r} it was made of: an older version wrote it"
        elif told[name] != planned:
            yield _other_data(name, amount, manifest.result)
    for name in sorted({*told} - {one for one, end in ranges.ends.items() if end != ranges.starts.get(one)}):
        yield f"the output was made of data of source {name!r} too, of which nothing is planned"


def _asked(recorded: Recorded, name: str, key: BatchKey) -> OpenSource | None:
    """The source, as the newest attempt ran it. A plan that was the first to read it has left no attempt, if its task
    died: a run that is refused at that batch has put its pipeline on record."""
    run = recorded.source(name, lane=key.lane)
    if run is not None or key.lane != LIVE:
        return run
    return next((source for other, source in recorded.other_sources() if other == name), None)


def _other_data(name: str, amount: Mapping[str, int], result: Mapping[str, Any]) -> str:
    """The text that the output was made of other data, and of how much, where that is known."""
    planned = " and ".join(f"{count} {word}" for word, count in amount.items()) or "other data"
    told = result.get("read")
    read = told.get(name) if isinstance(told, Mapping) else None
    counts = {word: read[word] for word in amount if type(read.get(word)) is int} if isinstance(read, Mapping) else {}
    made_of = " and ".join(f"{count} {word}" for word, count in counts.items())
    return f"of source {name!r} {planned} are planned, and the output was made of others" + (
        f" ({made_of})" if made_of else ""
    )
