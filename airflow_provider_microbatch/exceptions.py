"""Every error this package raises on purpose. Each message names what is wrong, where, and what to do.

This module imports nothing of the package, so that every layer may use it.
"""

from __future__ import annotations


class MicroBatchError(Exception):
    """Base of all errors of this package."""


class DefinitionError(MicroBatchError, ValueError):
    """A pipeline, source or sink was written with a wrong type or value; raised where it is constructed."""


class UntrustedError(DefinitionError):
    """A checkpoint or trigger names a class that may not be loaded because of that, or a checkpoint a server that may
    not be spoken to; it was not imported, or asked."""


class CheckpointError(MicroBatchError):
    """The checkpoint cannot be used as it is; nothing was written."""


class CorruptEntryError(CheckpointError):
    """A log entry is torn, empty, of an unknown version or not what its name says."""


class UnknownVersionError(CorruptEntryError):
    """A log entry was written by a newer version of this package or of Spark, or by something else."""


class BrokenLogError(CheckpointError):
    """Offset log and commit log contradict each other (a gap, a lag of two, commits without offsets)."""


class ForeignCheckpointError(CheckpointError):
    """The checkpoint belongs to another pipeline."""


class SourceCountError(CheckpointError):
    """A v1 checkpoint holds another number of sources than the pipeline names."""


class SourceRenamedError(CheckpointError):
    """A source of the checkpoint vanished and another one appeared: a person has to say whether they are the same."""


class MaintenanceError(CheckpointError):
    """A command that changes the checkpoint is refused, or one is at it and keeps everybody else out."""


class MovedError(MaintenanceError):
    """The checkpoint has moved to another place, which the message names; or is not all at this one yet."""


class SourceError(MicroBatchError):
    """A source cannot be listed or read."""


class SourceChangedError(SourceError):
    """What was planned is no longer what is there: a file vanished, changed or shrank."""


class SinkError(MicroBatchError):
    """A sink refused, or its table is not in a state it can be published to."""


class PartlyRemovedError(SinkError):
    """Some of what was to be removed could not be; the message says why. The rest is gone."""

    removed: tuple[str, ...] = ()
    """Addresses of what was removed all the same."""


class ForeignBatchError(SinkError):
    """What is at a batch's place in the table is not this checkpoint's batch; the message names whose it is, and the
    ways on."""


class PublishConflictError(SinkError):
    """Another attempt of the batch has published; the message names the winner."""


class EngineError(MicroBatchError):
    """The engine could not run the step, or the step ended with an error."""


class HandleError(EngineError):
    """A handle out of a checkpoint is none that its engine writes, so nothing was done with it."""


class TransformError(EngineError):
    """The user's transform failed, and the message is its own traceback; or what it returned cannot be written."""


class ReadError(EngineError):
    """Spark could not read what the batch reads, or not compute with it: the batch's own trouble, not the cluster's."""


class SparkKilledError(EngineError):
    """Spark's driver was killed; the message says by which signal."""


class HookError(MicroBatchError):
    """A job status hook refused the attempt."""


class AttemptFencedError(MicroBatchError):
    """A later attempt of the same batch exists, so this one may not go on."""


class OutrunError(AttemptFencedError):
    """Another attempt was faster at this moment; whoever looks again finds what became of it."""


class BatchInProgressError(MicroBatchError):
    """Another run is alive at the batch, so this one leaves it alone; nothing was written by it."""


class ConcurrentPlanError(BatchInProgressError, CheckpointError):
    """Another run planned the same batch id at the same time: that run, or the next one, finishes it."""


class IntervalError(MicroBatchError):
    """The run has no data interval that the sources could be asked for, or one of them has no clock."""


class NothingInIntervalError(MicroBatchError):
    """There is nothing to do for the run's data interval; the message says why. Not a failure."""


class BatchPurgedError(MicroBatchError):
    """A clear asks for a batch that retention may have removed; the message says so. Not a failure."""


class BatchSetAsideError(MicroBatchError):
    """A batch failed as often as its pipeline allows and was set aside; the pipeline goes on without it.

    :param batch: the batch, as ``<lane>/<id>``.
    """

    def __init__(self, message: str, *, batch: str) -> None:
        super().__init__(message)
        self.batch = batch


class AttemptCanceledError(MicroBatchError):
    """The attempt was told to stop (``on_kill``); nothing was or will be published by it."""


class EnvironmentMismatchError(MicroBatchError):
    """The installed packages contradict each other; the message has the command that mends it."""
