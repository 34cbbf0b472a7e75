"""The state that a batch has left, as its attempts have told it, and the folder in which its files are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.codec import STATE_IDS
from airflow_provider_microbatch.checkpoint.entries import CommitEntry
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.source_names import SourceNames
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.identity import expected
from airflow_provider_microbatch.execution.planned import load_batch
from airflow_provider_microbatch.execution.query_state import state_of_query
from airflow_provider_microbatch.execution.state_conf import check_state_conf
from airflow_provider_microbatch.execution.state_files import flat
from airflow_provider_microbatch.runtime.operator_schemas import are_schemas
from airflow_provider_microbatch.runtime.watermarks import renamed
from airflow_provider_microbatch.sinks import OpenSink

_ID = re.compile(r"[0-9a-fA-F-]{36}")


def has_left_state(commit: CommitEntry) -> bool:
    """Whether the batch with this commit entry has left state, a pipeline's or a streaming query's."""
    return commit.progress.get("state") is not None or bool(commit.extra.get(STATE_IDS))


def local_folder(checkpoint: Checkpoint) -> Path:
    """The checkpoint's folder.

    :raises CheckpointError: if it lies in no file system of this host.
    """
    folder = folder_of(checkpoint)
    if folder is None:
        raise CheckpointError(
            f"checkpoint {checkpoint.location}: a stateful pipeline keeps its checkpoint in a file system that the "
            "task and Spark share (attempts share state by a link, and other stores have none). Give it a path."
        )
    return folder


def folder_of(checkpoint: Checkpoint) -> Path | None:
    """The checkpoint's folder; None if it lies in no file system of this host."""
    address = checkpoint.for_spark
    if address is None or not address.startswith("file:///"):
        return None
    return Path(address.removeprefix("file://"))


def state_of(result: Mapping[str, Any], *, where: str) -> Mapping[str, Any] | None:
    """The state that an attempt told; None if it kept none. Ids become names of files, and settings Spark's, so they
    are checked.

    :raises CheckpointError: if the state is nothing that Spark tells, or was made with settings that no batch goes on
        with.
    """
    state = result.get("state")
    if state is None:
        return None
    good = (
        isinstance(state, Mapping)
        and isinstance(state.get("conf"), Mapping)
        and type(state.get("nextWatermarkMs")) is int
        and _are_watermarks(state.get("watermarks", {}))
        and _are_streams(state.get("timed", []))
        and _are_places(state.get("places", []))
        and _are_columns(state.get("columns", []))
        and _are_ids(state.get("ids"))
        and (state.get("base") is None or _are_ids(state["base"]))
        and type(state.get("since", 0)) is int
        and are_schemas(state.get("schemas", {}))
    )
    if not good:
        raise CheckpointError(f"{where}: what it tells of its state cannot be read. Replay the batch.")
    check_state_conf(state["conf"], where=where)
    found: Mapping[str, Any] = state
    return found


def named_as_now(state: Mapping[str, Any], names: SourceNames) -> Mapping[str, Any]:
    """The state of a batch, with the names that its sources have now: what goes on from it knows them by these."""
    if not names.renames():
        return state
    places = [
        [[sorted(map(names.of, sources)), *made] for sources, *made in place] for place in state.get("places", ())
    ]
    return {
        **state,
        "watermarks": {renamed(name, names.of): at for name, at in state.get("watermarks", {}).items()},
        "timed": [[renamed(name, names.of), *made] for name, *made in state.get("timed", ())],
        "places": places,
        # Columns are told by digests of texts that have the names in them: who compares makes them by the former names.
        "renamed": {names.of(name): name for name in _sources_of(state) if names.of(name) != name},
    }


def _sources_of(state: Mapping[str, Any]) -> Iterator[str]:
    for place in state.get("places", ()):
        for sources, *_ in place:
            yield from sources


def _are_watermarks(value: object) -> bool:
    return isinstance(value, Mapping) and all(type(at) is int for at in value.values())


def _are_streams(value: object) -> bool:
    """Whether it is what :attr:`.watermarks.Streams.made` tells."""
    return isinstance(value, list) and all(_are_texts(one) and len(one) > 1 for one in value)


def _are_places(value: object) -> bool:
    """Whether it is what :meth:`.query_plan.Query.places` tells."""
    return isinstance(value, list) and all(isinstance(place, list) and all(map(_is_part, place)) for place in value)


def _are_columns(value: object) -> bool:
    """Whether it is what :func:`.other_state.columns_told` tells."""
    if not isinstance(value, list) or not all(isinstance(place, list) for place in value):
        return False
    return all(isinstance(names, list) and all(map(_are_texts, names)) for place in value for names in place)


def _is_part(value: object) -> bool:
    return isinstance(value, list) and len(value) > 1 and _are_texts(value[0]) and _are_texts(value[1:])


def _are_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _are_ids(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(operator.isdecimal() and all(map(_ID.fullmatch, flat(ids))) for operator, ids in value.items())


def published_result(checkpoint: Checkpoint, key: BatchKey, sinks: Iterable[OpenSink]) -> Mapping[str, Any]:
    """The result of the attempt whose output readers find of a batch. Without any sink that has it (the table is
    another one now) the newest answer to a replay tells it, else the commit entry; or nothing does.

    :param sinks: asked in turn, until readers of one find rows of the batch.
    """
    batch = expected(checkpoint, load_batch(checkpoint, key).identity)
    published = next((found for sink in sinks if (found := sink.seen(batch)) is not None), None)
    if published is not None:
        return published.result
    commit = checkpoint.lane(key.lane).commit_of(key.id)
    if commit is None:
        return {}
    answer = checkpoint.replays.newest_answer(key)
    if answer is not None and answer.get("progress"):
        replayed: Mapping[str, Any] = answer["progress"]
        return replayed
    left = state_of_query(checkpoint, key, commit)
    return commit.progress if left is None else {**commit.progress, "state": left}
