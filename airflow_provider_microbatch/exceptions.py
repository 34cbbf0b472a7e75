"""Every error this package raises on purpose. Each message names what is wrong, where, and what to do.

This module imports nothing of the package, so that every layer may use it.
"""

from __future__ import annotations


class MicroBatchError(Exception):
    """Base of all errors of this package."""


class DefinitionError(MicroBatchError, ValueError):
    """A pipeline, source or sink was written with a wrong type or value; raised where it is constructed."""


class UntrustedError(DefinitionError):
    """A checkpoint or trigger names a class that is not trusted, or a checkpoint names a server that is not trusted.
    The class was not imported, the server not asked."""


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
    """A command that changes the checkpoint is refused; or such a command is at work and keeps all others out."""


class MovedError(MaintenanceError):
    """The checkpoint has moved to another place, which the message names; or has not moved to this place as a whole
    yet."""


class SourceError(MicroBatchError):
    """A source cannot be listed or read."""


class SourceChangedError(SourceError):
    """The source no longer holds what was planned: a file vanished, changed or shrank."""


class SinkError(MicroBatchError):
    """A sink refused, or its table is in a state in which nothing can be published to the table."""


class UnconnectedError(DefinitionError, SinkError):
    """The connection of a sink cannot be used, so its table cannot be asked. One on record may name a connection that
    was renamed, or removed, since."""


class PartlyRemovedError(SinkError):
    """Some of the output that was to be removed could not be removed; the message says why. The rest is gone."""

    removed: tuple[str, ...] = ()
    """Addresses of the output that was removed."""


class ForeignBatchError(SinkError):
    """The table holds at a batch's place the batch of another checkpoint; the message names the owner and the ways
    on."""


class RolledBackError(SinkError):
    """A table was set back to before batches that count as published; the message has the ways on."""


class PublishConflictError(SinkError):
    """Another attempt of the batch has published; the message names the winner."""


class EngineError(MicroBatchError):
    """The engine could not run the step, or the step ended with an error."""


class HandleError(EngineError):
    """A handle out of a checkpoint is not of the form that its engine writes, so nothing was done with the handle."""


class TransformError(EngineError):
    """The user's transform failed, and the message is its traceback; or the result of the transform cannot be
    written."""


class ReadError(EngineError):
    """Spark could not read the batch's data, or not compute with the data: the fault is the batch's, not the
    cluster's."""


class SparkKilledError(EngineError):
    """Spark's driver was killed; the message says by which signal, or what YARN says of it."""


class HookError(MicroBatchError):
    """A job status hook refused the attempt."""


class AttemptFencedError(MicroBatchError):
    """A later attempt of the same batch exists, so this attempt may not go on."""


class OutrunError(AttemptFencedError):
    """Another attempt was faster at this moment; a second look finds the outcome of that attempt."""


class BatchInProgressError(MicroBatchError):
    """Another run is alive at the batch, so this run leaves the batch alone; this run has written nothing."""


class ConcurrentPlanError(BatchInProgressError, CheckpointError):
    """Another run planned the same batch id at the same time: that run, or the next one, finishes it."""


class IntervalError(MicroBatchError):
    """The run has no data interval to ask the sources for, or one of the sources has no clock."""


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
    """The attempt was told to stop (``on_kill``); the attempt has published nothing, and will not."""


class EnvironmentMismatchError(MicroBatchError):
    """The installed packages contradict each other; the message has the command that mends the installation."""


def sentence(told: object) -> str:
    """The message of an error, with a full stop where it has no end: for a message that goes on behind it."""
    text = str(told)
    return text if text.endswith((".", "?", "!")) else f"{text}."
