"""Tables of before that a rewind does not ask: those that are gone, and those that the user takes for gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.exceptions import MaintenanceError, SinkError, sentence
from airflow_provider_microbatch.upkeep.commands.site import Recorded


@contextmanager
def saying_what_to_do(checkpoint: Checkpoint, *, lane: str) -> Iterator[None]:
    """Name the ways on where a table cannot be asked that the pipeline does not write to any more: its server may be
    gone for good, and no run goes on before that batch of which it has an attempt is rewound.

    :param lane: the lane that is rewound.
    :raises MaintenanceError: in place of such an error.
    """
    try:
        yield
    except SinkError as error:
        recorded = Recorded(checkpoint, abandons=lane)
        left = recorded.abandoned(recorded.on_record())
        if not left:
            raise
        raise MaintenanceError(
            f"{sentence(error)} Nothing was done. {' and '.join(left)} cannot be asked, and the pipeline does "
            "not write there any more. Have that answer again, and type this again; or, if it is gone for good, with "
            "--allow-skip: what it has of these batches stays there."
        ) from error


def told_of_tables(recorded: Recorded) -> Iterator[str]:
    """What there is to say of them, in words.

    :raises MaintenanceError: if no sink is on record.
    """
    for sink in recorded.on_record():
        left = recorded.abandoned([sink])
        for where, why in left.items():
            yield (
                f"{where} is not asked, since the pipeline does not write there any more: {why}. What it has of the "
                "batches that are taken out stays there."
            )
        if not left and recorded.is_gone(sink):
            yield f"{sink.location()} is gone, and is not asked for the batches that are taken out."
