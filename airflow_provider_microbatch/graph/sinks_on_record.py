"""The pipeline that writes each sink of a job, on record beside the job's checkpoints.

A graph that is changed may split in another way: an edge that joins two parts makes one pipeline of them, and sinks in
another order give a part another name. The table would then go on under another checkpoint, which reads its sources
from the start: all rows would be in the table twice. So a pipeline stops if another pipeline of the job has
written its sink, and the user has to decide.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_microbatch.checkpoint.records import decode_record, encode_record
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store

_FOLDER = "_job/sinks"
"""Folder below the job's checkpoints. No pipeline has a name that begins with an underscore."""


def check_sinks(checkpoint: str, *, pipeline: str, sinks: Sequence[str]) -> None:
    """Check that the sinks are this pipeline's, and put that on record. Called before anything is planned; idempotent.

    :param checkpoint: address of the job's checkpoints.
    :param pipeline: name of the pipeline in its job.
    :param sinks: names of the pipeline's sinks.
    :raises DefinitionError: if another pipeline of the job has written one of the sinks.
    :raises CheckpointError: if the store cannot be reached.
    """
    store: Store = open_store(checkpoint).scoped(_FOLDER)
    for sink in sinks:
        _check(store, sink, checkpoint=checkpoint, pipeline=pipeline)
    # Only after all checks: a graph that is refused must leave nothing on record, or the way on would be refused too.
    for sink in sinks:
        if not store.put_if_absent(sink, encode_record({"pipeline": pipeline})):
            _check(store, sink, checkpoint=checkpoint, pipeline=pipeline)


def _check(store: Store, sink: str, *, checkpoint: str, pipeline: str) -> None:
    there = store.get(sink)
    where = f"{store.location}/{sink}"
    owner = pipeline if there is None else decode_record(there, where=where).get("pipeline")
    if owner != pipeline:
        raise DefinitionError(
            f"sink {sink!r} was written by pipeline {owner!r} of this job, and would be by {pipeline!r} now, whose "
            "checkpoint does not know what is in the table: its sources would be read into it again. Nothing was "
            f"planned. Either the pipeline keeps its name: sink({sink!r}, …, pipeline={owner!r}); the checkpoint of a "
            "pipeline is of its name for good, wherever it lies. Or, where the graph was joined or parted so that it "
            "cannot, the rows go to a sink of another name with a table of its own, which begins anew; or the graph is "
            "as it was."
        )
