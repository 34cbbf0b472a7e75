"""What tables tell of the batches that they have, each by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import OpenSink


@dataclass(frozen=True, kw_only=True)
class Told:
    """What tables tell of a lane.

    :param holders: id of a batch, of any checkpoint → the tables that have one under it.
    :param silent: for each table that cannot tell, the reason, in words.
    :param keeping: of these reasons those of tables out of which no batch can be taken, and why others cannot be asked,
        of which nobody can tell that.
    """

    holders: Mapping[int, Sequence[OpenSink]]
    silent: tuple[str, ...]
    keeping: tuple[str, ...] = ()


def told_by(asked: Iterable[OpenSink], lane: str, tables: KnownTables) -> Told:
    """What each table tells of a lane. One that was dropped long ago must not hide what the others hold."""
    holders, silent, keeping = dict[int, list[OpenSink]](), list[str](), list[str]()
    for table in asked:
        try:
            for number in table.batches(lane, tables):
                holders.setdefault(number, []).append(table)
        except SinkError as error:
            # A sink that never lists its batches has nothing to be mended.
            if type(table).batches is not OpenSink.batches:
                silent.append(f"{table.location()} does not tell which batches it has: {error}")
                keeping += silent[-1:] if table.definition.keeps_for_good else []
    return Told(holders=holders, silent=tuple(silent), keeping=tuple(keeping))
