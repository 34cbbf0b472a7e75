"""Marks of batches for which the function was called and which are not on record yet: a process may have died over the
call, and their rows may be in the target, where no record tells of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.file.posix import put_file
from airflow_provider_microbatch.sinks.file.reading import read_regular
from airflow_provider_microbatch.sinks.file.removal import folder_of, remove_in

_FOLDER = "_called"


def note_call(root: Path, batch: BatchIdentity, epoch: int) -> bool:
    """Put the mark of a batch, durably: from then on its rows may be in the target.

    :return: False if it was there: a call for the batch came to no end.
    """
    path = _mark(root, batch)
    if os.path.lexists(path):
        return False
    put_file(root, path, json.dumps({"version": 1, "epoch": epoch, "identity": batch.to_dict()}).encode())
    return True


def is_called(root: Path, batch: BatchIdentity) -> bool:
    """Whether the function was called for the batch, of whichever plan, and no end of that is on record."""
    return os.path.lexists(_mark(root, batch))


def called_for(root: Path, batch: ExpectedBatch) -> Manifest | None:
    """The attempt for which the function was called, if it is the batch's."""
    try:
        told = json.loads(read_regular(_mark(root, batch.identity)))
        made = Manifest(
            key=batch.key, epoch=int(told["epoch"]), identity=BatchIdentity.from_dict(told["identity"])
        )  # fmt: skip
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return batch.find(made)


def forget_call(root: Path, batch: BatchIdentity) -> None:
    """Remove the mark. One that comes back by a power cut is of rows that are on record, or are out."""
    path = _mark(root, batch)
    if os.path.lexists(path):
        with folder_of(root, path) as held:
            remove_in(held, path)


def _mark(root: Path, batch: BatchIdentity) -> Path:
    key = batch.key
    return root / _FOLDER / f"{batch.checkpoint}.lane={key.lane}.batch_id={key.id}.json"
