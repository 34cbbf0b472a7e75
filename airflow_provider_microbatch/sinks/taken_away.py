"""Batches whose rows went as somebody put a whole table into another state, which still counts them as in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.sinks import OpenSink


@dataclass(frozen=True, kw_only=True)
class TakenAway:
    """Batches that one commit of others has taken away.

    :param ids: their numbers, ascending; at least one.
    :param by: the commit, in words.
    :param back: how to bring their rows back, in words.
    """

    ids: Sequence[int]
    by: str
    back: str


class TellsTakenAway(OpenSink):
    """A table whose log tells what it had before such a commit."""

    @abstractmethod
    def taken_away(self, lane: str, below: int, tables: KnownTables) -> Sequence[TakenAway]:
        """Batches of the lane that are in, and of which readers find no row since somebody has put the whole table into
        another state, as far as the table's log goes back. For ``microbatch check --table``: may be slow.

        :param below: batches with lower numbers are looked at.
        :raises SinkError: if the table is away.
        """

    @abstractmethod
    def undoing(self, lane: str, ids: Collection[int], tables: KnownTables) -> str | None:
        """The command that undoes the table's newest commit, if that has put the whole table into another state, and
        has brought back rows of these batches; None if the version before has such rows, too, or is not there any more.

        :param ids: batches of the lane that came back.
        :raises SinkError: if the table is away.
        """
