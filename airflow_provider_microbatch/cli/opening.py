"""Find the checkpoint, lane and batch that the user named."""

from __future__ import annotations

import argparse
from pathlib import Path

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey, check_name
from airflow_provider_microbatch.exceptions import CheckpointError, SourceCountError
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store, scheme_of


def open_checkpoint(location: str, *, sources: tuple[str, ...] = ()) -> Checkpoint:
    """The checkpoint at ``location``. Reads only: a missing folder is not made.

    :param location: path, relative to the working directory or absolute, or ``file:`` URL.
    :param sources: names in the order of the pipeline, for a v1 log that Spark wrote.
    :raises CheckpointError: if there is no checkpoint, or it cannot be read.
    """
    return Checkpoint(open_checkpoint_store(location, sources=sources), sources=sources)


def open_checkpoint_store(location: str, *, sources: tuple[str, ...] = (), leaving_for: str | None = None) -> Store:
    """The store of :func:`open_checkpoint`, for commands that change it.

    :param leaving_for: the place that the checkpoint may have moved to, or be on its way to.
    """
    store = open_location(location)
    if not {"metadata", "offsets", "commits", "maintenance"} & set(store.list("")):
        raise CheckpointError(
            f"{store.location} is not a checkpoint: it is not there, or holds neither 'metadata' nor 'offsets' nor "
            "'commits'. Give the path that the pipeline has as checkpoint=…"
        )
    places = Checkpoint(store).maintenance.places
    moved = places.moved()
    if moved is None or moved.target != leaving_for:
        places.check(store.list("maintenance"))
    _check_names(Checkpoint(store, sources=sources))
    return store


def open_location(location: str) -> Store:
    """The store at ``location``, whether or not anything exists there. Touches nothing.

    :param location: path, relative to the working directory or absolute, or ``file:`` URL.
    """
    return open_store(location if scheme_of(location) else str(Path(location).absolute()))


def check_lane(checkpoint: Checkpoint, lane: str) -> str:
    """``lane`` if the checkpoint has it.

    :raises CheckpointError: if not; the message names the lanes that exist.
    """
    check_name(lane, what="lane")
    lanes = checkpoint.lanes()
    if lane not in lanes:
        raise CheckpointError(f"{checkpoint.location} has no lane {lane!r}; it has {', '.join(lanes) or 'none'}.")
    return lane


def add_batch(parser: argparse.ArgumentParser) -> None:
    """Add the argument of a command about one batch; see :func:`asked_batch`."""
    parser.add_argument("batch", type=_batch, metavar="N", help="id of the batch in --lane, or <lane>/N")


def asked_batch(arguments: argparse.Namespace, checkpoint: Checkpoint) -> BatchKey:
    """The batch that the user asked for. :raises CheckpointError: if the checkpoint has no such lane."""
    asked = BatchKey.parse(arguments.batch if "/" in arguments.batch else f"{arguments.lane}/{arguments.batch}")
    return BatchKey(check_lane(checkpoint, asked.lane), asked.id)


def _batch(text: str) -> str:
    """``N`` or ``<lane>/N``. :raises argparse.ArgumentTypeError: for anything else."""
    if not text.rpartition("/")[2].isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a batch (a number from 0 on, or <lane>/<number>)")
    return text


def _check_names(checkpoint: Checkpoint) -> None:
    """Check that the sources of a v1 log that Spark wrote are named: without names every entry would look broken."""
    try:
        identity = checkpoint.identity()
        if identity is not None and identity.pipeline is None and identity.format == "v1":
            checkpoint.offset_log.latest()
    except SourceCountError as error:
        raise CheckpointError(f"{error} Name them with --sources NAME,NAME.") from None
    except CheckpointError:
        # The command reports broken entries: `check` goes on to list all of them.
        return


def non_negative_seconds(text: str) -> float:
    """The seconds of an argument for a duration."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 on")
    return seconds
