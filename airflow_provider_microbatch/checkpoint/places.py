"""The records of a checkpoint's move, at the place that it has left and at the place that it comes to.

``microbatch copy`` writes three files beside the entries of commands, each of them once:

| file | where | what |
| --- | --- | --- |
| ``maintenance/from`` | the new place | the checkpoint is on its way here: nothing may begin |
| ``maintenance/moved`` | the old place | the checkpoint has left: nothing goes on here, ever |
| ``maintenance/from.end`` | the new place | the checkpoint is all here, and the old place says that it has left |

They are written in this order, so at every moment at most one place lets anything go on.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from shlex import quote

from airflow_provider_microbatch.checkpoint.records import corrupt, decode_record, encode_record
from airflow_provider_microbatch.exceptions import MovedError
from airflow_provider_microbatch.stores import Store

MOVED = "moved"
ARRIVING = "from"
ARRIVED = "from.end"
OF_THE_PLACE = frozenset({MOVED, ARRIVING, ARRIVED})
"""These files never move along: a checkpoint that is copied again, to a third place, has left the second one."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """A checkpoint that goes from one place to another.

    :param source: the place it leaves.
    :param target: the place it comes to.
    :param checkpoint: its id, which moves along.
    :param by: user and host.
    :param at_ms: when the command was planned, milliseconds since the epoch, UTC.
    """

    source: str
    target: str
    checkpoint: str
    by: str
    at_ms: int

    def encoded(self) -> bytes:
        """The record as it is written at either place."""
        return encode_record(vars(self))

    @classmethod
    def decoded(cls, data: bytes, *, where: str) -> Move:
        """Decode a record. :raises CorruptEntryError: if the bytes are no record of a move."""
        values = decode_record(data, where=where)
        texts = [values.get(name) for name in ("source", "target", "checkpoint", "by")]
        at_ms = values.get("at_ms")
        if not all(isinstance(text, str) for text in texts) or type(at_ms) is not int:
            corrupt(where, "not what it should be: it does not say from where to where")
        source, target, checkpoint, by = map(str, texts)
        return cls(source=source, target=target, checkpoint=checkpoint, by=by, at_ms=at_ms)

    def __str__(self) -> str:
        try:
            stamp = datetime.fromtimestamp(self.at_ms / 1000, tz=UTC).isoformat(timespec="seconds")
        except (OverflowError, ValueError, OSError):
            stamp = str(self.at_ms)
        return f"{self.command} (by {self.by}, {stamp})"

    @property
    def command(self) -> str:
        """The command, quoted for a shell: it does what is said when it is pasted."""
        return f"`microbatch copy {quote(self.source)} {quote(self.target)}`"


class Places:
    """The records of a checkpoint's move.

    :param store: scoped to ``maintenance``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def moved(self) -> Move | None:
        """The move by which the checkpoint has gone; None if it is here."""
        return self._read(MOVED)

    def arriving(self) -> Move | None:
        """The move by which the checkpoint is on its way here; None if there is no such move, or it has ended."""
        return None if self._store.get(ARRIVED) is not None else self._read(ARRIVING)

    def check(self, names: Collection[str]) -> None:
        """Check that the checkpoint is here, and whole.

        :param names: names of the store's entries, as they were just listed: where nothing ever moved nothing is read.
        :raises MovedError: if the checkpoint is elsewhere, or not all here yet.
        """
        here = self._store.location.removesuffix("/maintenance")
        if MOVED in names and (moved := self._read(MOVED)) is not None:
            raise MovedError(
                f"checkpoint {here} has moved to {moved.target}: {moved}. Nothing goes on at the old place. Give the "
                f"pipeline checkpoint={moved.target!r}. If that command was killed, type it again: it goes on."
            )
        if ARRIVING in names and ARRIVED not in names and (move := self._read(ARRIVING)) is not None:
            raise MovedError(
                f"checkpoint {here} is not all here yet: {move} copies it, and was killed if it does not run any more. "
                "Type it again, and it goes on; if it was given up, remove all that is here first."
            )

    def _read(self, name: str) -> Move | None:
        data = self._store.get(name)
        return None if data is None else Move.decoded(data, where=f"{self._store.location}/{name}")
