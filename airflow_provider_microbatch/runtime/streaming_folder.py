"""The checkpoint folder of one attempt, in Spark's bytes. The folder holds one planned batch and the commit before it,
so that Spark's streaming engine runs exactly this batch. Formats: ``OffsetSeqLog`` v1, ``CommitLog`` v2,
``FileStreamSourceLog`` v1."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.runtime.operator_schemas import ADDRESSES, lend, take
from airflow_provider_microbatch.runtime.streaming_job import Stream, Streaming

log = logging.getLogger("microbatch")

_VOID = "-"


ROWS = "rows"
"""Folder beside Spark's own with copies of rows, by the name of their source."""

TOLD = "told"
"""Folder beside Spark's own with the rows that a bounded batch tells before its end."""

STATE = "state"
"""Where Spark looks for state in a checkpoint: a link to what all attempts share, or a folder of the attempt's own."""

END_MS = 9_191_000_000_000_000
"""The watermark that nothing comes after, milliseconds since the epoch: in the year 293,222. Spark counts in
microseconds of 64 bits, which end a thousand years later: to a watermark it adds what a join waits for, and a sum
beyond would be before everything, so that nothing of the join would be final."""


def make_folder(streaming: Streaming) -> None:
    """Make the folder, empty. A folder that exists already is an error: an attempt runs once.

    :raises FileExistsError: if the folder exists.
    :raises NotADirectoryError: if it would lie behind a link.
    """
    folder = Path(streaming.folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _held(folder.parent) as held:
        os.mkdir(folder.name, dir_fd=held)


def write_folder(
    streaming: Streaming,
    uses: Sequence[Stream],
    streams: Sequence[Stream],
    *,
    batch_id: int,
    watermark_ms: int,
    timestamp_ms: int,
    conf: Mapping[str, str],
) -> None:
    """Fill the folder, which :func:`make_folder` has made.

    :param uses: streams in the order of the query's plan; a stream that the plan uses twice occurs twice.
    :param streams: streams in the order of the plan's relations, each relation once: Spark numbers the sources' own
        logs by it.
    :param conf: the settings that the query's state was, or will be, made with.
    """
    folder = Path(streaming.folder)
    _show_state(streaming, batch_id)
    _write(folder / "metadata", json.dumps({"id": streaming.query_id}))
    if batch_id > 0:
        before: Mapping[str, Any] = streaming.before or {}
        # Spark counts as late what is behind this entry's watermark. By the batch's own one, what an operator lets go
        # of at that watermark would be late for the operator behind it. Its time is before all others: what a processor
        # forgets, Spark 4.2 looks for between the two, and would keep all of it for good if they were one.
        late = _line(streaming.late_ms, 0, conf)
        starts = [stream.start or _VOID for stream in uses]
        _write(folder / "offsets" / str(batch_id - 1), "\n".join(["v1", late, *starts]))
        _write(folder / "commits" / str(batch_id - 1), _commit(watermark_ms, before.get("ids", {})))
    for position, stream in enumerate(streams):
        for name, text in stream.log.items():
            _write(folder / "sources" / str(position) / name, text)
    ends = [stream.end or _VOID for stream in uses]
    # Written last: for Spark, the batch is planned once this entry exists.
    line = _line(watermark_ms, timestamp_ms, conf)
    _write(folder / "offsets" / str(batch_id), "\n".join(["v1", line, *ends]))


def _show_state(streaming: Streaming, batch_id: int) -> None:
    """Show Spark the state that the batch goes on from. The first one goes on from none, and writes into a folder of
    its own until :func:`leave_state`: Spark compares no operators there, and refuses at the next batch what it finds of
    an attempt with others."""
    shared, own = Path(streaming.state), Path(streaming.folder) / STATE
    shared.mkdir(parents=True, exist_ok=True)
    schemas = _schemas_before(streaming)
    if schemas:
        lend(schemas, shared=shared, own=own, batch_id=batch_id - 1)
    elif shared == own:
        pass  # of a bounded batch
    elif streaming.before is None:
        own.mkdir()
    else:
        own.symlink_to(shared, target_is_directory=True)


def _schemas_before(streaming: Streaming) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (streaming.before or {}).get("schemas", {})
    return found


def leave_state(streaming: Streaming, batch_id: int) -> dict[str, Any]:
    """Have what Spark has written of its state lie where all attempts share it.

    :return: what operators with several families of columns have written down, see :mod:`.operator_schemas`.
    :raises ValueError: if it has an address in the attempt's own folder.
    :raises BatchFailure: if an attempt at the first batch has left other operators there.
    """
    shared, own = Path(streaming.state), Path(streaming.folder) / STATE
    if not own.is_symlink():
        return take(_schemas_before(streaming), shared=shared, own=own, batch_id=batch_id - 1)
    for found in shared.glob(f"*/{ADDRESSES}"):
        raise ValueError(
            f"an operator of this version of Spark keeps the address of the attempt's own folder in {found}, and no "
            "later batch could go on from there. Begin a checkpoint and a table of their own, without that operator"
        )
    return {}


def plan_end(
    streaming: Streaming, uses: Sequence[Stream], *, batch_id: int, timestamp_ms: int, conf: Mapping[str, str]
) -> None:
    """Plan a batch without data behind the one that Spark has committed, at the watermark that makes all final: also
    what has the last moment of the calendar for "never", and waits behind it for an hour, or for a timer.

    :param uses: as :func:`write_folder` had them; ``conf`` too.
    :param batch_id: number of the batch without data.
    """
    ends = [stream.end or _VOID for stream in uses]
    entry = "\n".join(["v1", _line(END_MS, timestamp_ms, conf), *ends])
    _write(Path(streaming.folder) / "offsets" / str(batch_id), entry)


def write_committed(
    folder: str,
    *,
    state: str,
    query_id: str,
    batch_id: int,
    watermark_ms: int,
    ids: Mapping[str, Any],
    conf: Mapping[str, str],
    schemas: Mapping[str, Any] | None = None,
) -> None:
    """Make a folder that holds one committed batch, as Spark's state reader needs it. The state stays where it is.

    :raises FileExistsError: if the folder exists.
    """
    path = Path(folder)
    path.mkdir()
    lend(schemas or {}, shared=Path(state), own=path / STATE, batch_id=batch_id)
    _write(path / "metadata", json.dumps({"id": query_id}))
    _write(path / "offsets" / str(batch_id), "\n".join(["v1", _line(watermark_ms, 0, conf), _VOID]))
    _write(path / "commits" / str(batch_id), _commit(watermark_ms, ids))


def _line(watermark_ms: int, timestamp_ms: int, conf: Mapping[str, str]) -> str:
    metadata = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": timestamp_ms, "conf": dict(conf)}
    return json.dumps(metadata, separators=(",", ":"))


def _commit(watermark_ms: int, ids: Mapping[str, Any]) -> str:
    commit = {"nextBatchWatermarkMs": watermark_ms, "stateUniqueIds": ids}
    return "v2\n" + json.dumps(commit, separators=(",", ":"))


def read_commit(folder: str, batch_id: int) -> dict[str, Any]:
    """The content of Spark's commit of the batch: ``nextBatchWatermarkMs`` and ``stateUniqueIds``.

    :raises ValueError: if Spark wrote another version, which names no files of state.
    """
    path = Path(folder) / "commits" / str(batch_id)
    version, _, text = path.read_text(encoding="utf-8").partition("\n")
    if version != "v2":
        raise ValueError(f"{path} is of version {version!r}, not v2: Spark did not keep state by ids")
    found: dict[str, Any] = json.loads(text.splitlines()[0])
    return found


def remove_folder(folder: str) -> None:
    """Remove the folder, but not the targets of links in it. A missing folder is no error. Others may write where it
    lies: if its parent is a link, nothing is removed; of a folder that is a link, only the link is."""
    path = Path(folder)
    try:
        with _held(path.parent) as held:
            with contextlib.suppress(OSError):
                os.unlink(path.name, dir_fd=held)  # a link; of a folder it is refused
            shutil.rmtree(path.name, ignore_errors=True, dir_fd=held)
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        log.warning("%s is not removed: %s", folder, error)


@contextmanager
def _held(folder: Path) -> Iterator[int]:
    """The folder, open.

    :raises NotADirectoryError: if it is a link.
    """
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:
        why = "a link in place of the folder of attempts, or no folder; look who put it there, and remove it"
        raise NotADirectoryError(error.errno, why, str(folder)) from None
    try:
        yield held
    finally:
        os.close(held)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
