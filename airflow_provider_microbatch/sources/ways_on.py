"""The ways on, in words, where what a source has now cannot be told from what was read of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from airflow_provider_microbatch.checkpoint.entries import Offset


class SetOffset(Protocol):
    """The command that sets a source's position, as it is typed: :meth:`SourceContext.set_offset`."""

    def __call__(self, offset: Offset | None, *, skip: bool = False, reread: bool = False) -> str: ...


@runtime_checkable
class TellsMadeAgain(Protocol):
    """An opened source that tells what has taken the place of the data that the checkpoint's positions are of. An
    ``OpenSource`` need not."""

    def made_again(self) -> str | None:
        """Describe it, with the ways on; None if nothing has. As long as something has, the source plans nothing.

        :raises SourceError: if the source cannot be asked.
        """


@runtime_checkable
class TellsWaiting(Protocol):
    """An opened source that tells what it waits for in vain. An ``OpenSource`` need not."""

    def waits_in_vain(self, position: Offset | None) -> str | None:
        """Describe what is likely to be waited for at a position without an end, with the ways on; None if nothing is.

        :raises SourceError: if it is no position of this source.
        """


@runtime_checkable
class TellsLost(Protocol):
    """An opened source of which a part of a committed range may be gone where ``not_replayable`` and ``left_out`` tell
    of none. An ``OpenSource`` need not."""

    def lost_anew(
        self, start: Offset | None, end: Offset | None, *, told: Sequence[Mapping[str, Any]] = ()
    ) -> str | None:
        """Describe, with names, the data of the range that a batch has read and that a plan made anew would go on
        without; None if none is gone.

        :param told: the reader's results of that batch, as far as they are on record, the newest last. One of a version
            of before may tell less than another.
        :raises SourceError: if the source cannot be asked.
        """


@runtime_checkable
class BeginsAsAsked(Protocol):
    """An opened source that may begin elsewhere each time that it is asked where. An ``OpenSource`` need not."""

    def begins_as_asked(self) -> bool:
        """Whether neither a record of its own nor its definition holds where its first batch begins, but that batch's
        entry alone."""


def is_asked(source: object) -> bool:
    """Whether an opened source may begin elsewhere each time that it is asked where; see :class:`BeginsAsAsked`."""
    return isinstance(source, BeginsAsAsked) and source.begins_as_asked()


def made_anew(set_offset: SetOffset, newest: Offset) -> str:
    """The ways on with a source whose newest position lies before the one that was read.

    :param newest: that position.
    """
    return (
        "If it was made anew, start a new checkpoint, or have the next batch begin at its beginning: "
        f"`{set_offset(None, reread=True)}`. To go on where it is now, without what lies before: "
        f"`{set_offset(newest, skip=True, reread=True)}`."
    )


def read_all_now(set_offset: SetOffset, begin: Offset) -> str:
    """The way on that reads all rows of a table as it is now.

    :param begin: the place of the whole present snapshot.
    """
    return (
        "To read all rows that are there now, so that what was read before is in the sink's table twice: "
        f"`{set_offset(begin, skip=True, reread=True)}`, or a source of another name. Where nothing may be there "
        "twice, begin a new checkpoint and a new table."
    )
