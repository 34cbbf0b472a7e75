"""Tables that a pipeline has written to, names no more, and that are away: dropped since, in all likelihood. No clear
and no rewind could bring back what batches had there, and nobody waits for it."""

from __future__ import annotations

from contextlib import suppress

from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, OpenSink
from airflow_provider_microbatch.sinks.dropped import TellsDropped
from airflow_provider_microbatch.upkeep.commands.site import Recorded, is_among, tables_of


class GoneTables:
    """Those that looks at batches have met.

    :param recorded: what the checkpoint has on record.
    """

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._met: dict[str, None] = {}
        self._named: dict[str, list[OpenSink]] = {}
        self._dropped: dict[str, bool] = {}

    def have_the_rest(self, sink: OpenSink, asked: ExpectedBatch) -> bool:
        """Whether all tables that attempts of the batch wrote to, beside those of a sink that has it, are such ones.
        Never where the pipeline names one of them: its readers lack the batch.

        :raises CheckpointError: if the record cannot be read.
        """
        key = asked.identity.key
        others = [one for one in tables_of(self._recorded.sinks_of(key)) if not is_among(one, sink.tables)]
        named = self._named_in(key.lane)
        gone = [one for one in others if not is_among(one, named) and self._is_not_there(one, asked.tables)]
        if not others or len(gone) < len(others):
            return False
        self._met |= dict.fromkeys(one.location() for one in gone)
        return True

    def has(self, table: OpenSink, tables: KnownTables) -> bool:
        """Whether it is such a table, or one that the pipeline names by another name: what it says, or cannot say, of
        itself is no finding then.

        :raises CheckpointError: if the record cannot be read.
        """
        named = self._named_in(LIVE)
        if any(one.location() == table.location() for one in named):
            return False
        if self._recorded.is_gone(table):
            return True
        is_gone = not is_among(table, named) and self._is_not_there(table, tables)
        self._met |= dict.fromkeys([table.location()] * is_gone)
        return is_gone

    def _named_in(self, lane: str) -> list[OpenSink]:
        # Once a lane: to find its newest attempt its batches are listed, and there is one look for each of these.
        if lane not in self._named:
            self._named[lane] = tables_of(self._recorded.today(lane))
        return self._named[lane]

    def _is_not_there(self, table: OpenSink, tables: KnownTables) -> bool:
        if table.seems_away(tables) is not None:
            return True
        if not isinstance(table, TellsDropped):
            return False
        location = table.location()
        if location not in self._dropped:
            # Once a check: a server that is down is waited for. What does not answer has not said that it is dropped.
            self._dropped[location] = False
            with suppress(SinkError):
                self._dropped[location] = table.was_dropped()
        return self._dropped[location]

    def told(self) -> list[str]:
        """What is told of them, in words."""
        return [
            f"{location} is away, and the pipeline names it no more: what batches had there is not asked for. If it "
            "was dropped, nothing is to be done; else bring it back, then check again."
            for location in self._met
        ]
