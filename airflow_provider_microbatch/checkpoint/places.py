"""That a checkpoint has moved: said at the place it has left, and at the one it comes to.

``microbatch copy`` writes three files beside those of commands, each of them once:

| file | where | what |
| --- | --- | --- |
| ``maintenance/from`` | the new place | the checkpoint is on its way here: nobody begins anything |
| ``maintenance/moved`` | the old place | it has left: nobody goes on here, ever |
| ``maintenance/from.end`` | the new place | it is all here, and the old place says that it has left |

They are written in this order, so at every moment one place at most lets anybody go on.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_provider_microbatch.checkpoint.records import corrupt, decode_record, encode_record
from airflow_provider_microbatch.exceptions import MovedError
from airflow_provider_microbatch.stores import Store

MOVED = "moved"
ARRIVING = "from"
ARRIVED = "from.end"
OF_THE_PLACE = frozenset({MOVED, ARRIVING, ARRIVED})
"""These never move along: what is copied again, to a third place, has left the second one."""


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
        """As it is written at either place."""
        return encode_record(vars(self))

    @classmethod
    def decoded(cls, data: bytes, *, where: str) -> Move:
        """:raises CorruptEntryError: if it is none."""
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
        return f"`microbatch copy {self.source} {self.target}` (by {self.by}, {stamp})"


class Places:
    """:param store: scoped to ``maintenance``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def moved(self) -> Move | None:
        """Where the checkpoint has gone; None if it is here."""
        return self._read(MOVED)

    def arriving(self) -> Move | None:
        """Whence it comes that is on its way here; None if nothing is, or it has arrived."""
        return None if self._store.get(ARRIVED) is not None else self._read(ARRIVING)

    def check(self, names: Collection[str]) -> None:
        """See that the checkpoint is here, and whole.

        :param names: of the store's entries, as they were just listed: where nothing ever moved nothing is read.
        :raises MovedError: if it is not.
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
                "Type it again, and it goes on; or remove what is here."
            )

    def _read(self, name: str) -> Move | None:
        data = self._store.get(name)
        return None if data is None else Move.decoded(data, where=f"{self._store.location}/{name}")
