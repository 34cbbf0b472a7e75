"""A second system of channels, in this process: a server that keeps how far its reader is, as Tablestore's tunnel does.
What it lists may be as old as a test likes."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_provider_microbatch.runtime.channels import At, Page
from airflow_provider_microbatch.sources import SourceContext
from airflow_provider_microbatch.sources.channels import Channel, ChannelSource, Look, Server
from airflow_provider_microbatch.sources.channels.graph import Position

NOW_MS = 1_795_000_000_000
DAY_MS = 86_400_000

TUNNELS: dict[str, Tunnel] = {}
"""By name, as executors would find them."""


class Tunnel:
    """Channels with rows, which are numbers; a row's place is its number in its channel."""

    def __init__(self, name: str = "tunnel") -> None:
        TUNNELS[name] = self
        self.rows: dict[str, list[int]] = {"c0": [], "c1": []}
        self.parents: dict[str, tuple[str, ...]] = {"c0": (), "c1": ()}
        self.closed: set[str] = set()
        self.gone: set[str] = set()
        self.kept: dict[str, str | None] = {}
        self.stale: Mapping[str, Channel] | None = None
        self.loses_pushes = False
        self.count = 0
        self.id = str(uuid.uuid4())

    def put(self, choice: random.Random) -> None:
        """A row into one of the open channels."""
        channel = choice.choice(sorted(self.open))
        self.rows[channel].append(self.count)
        self.count += 1

    def split(self, choice: random.Random) -> None:
        """One open channel becomes two."""
        self._follow([choice.choice(sorted(self.open))], children=2)

    def merge(self, choice: random.Random) -> None:
        """Two open channels become one."""
        if len(self.open) > 1:
            self._follow(choice.sample(sorted(self.open), 2), children=1)

    def expire(self, position: Position) -> None:
        """What was read to its end is listed no more."""
        self.gone |= {channel for channel, at in position.items() if at.get("finished")}

    @property
    def open(self) -> set[str]:
        """Channels that rows may come into."""
        return self.rows.keys() - self.closed

    def listing(self) -> dict[str, Channel]:
        """As of now."""
        return {
            name: Channel(id=name, parents=self.parents[name], closed=name in self.closed)
            for name in self.rows
            if name not in self.gone
        }

    def _follow(self, parents: list[str], *, children: int) -> None:
        self.closed |= {*parents}
        for _ in range(children):
            name = f"c{len(self.rows)}"
            self.rows[name], self.parents[name] = [], tuple(parents)


class TunnelServer:
    """What planning asks."""

    splits = "channels"
    keeps_ms = 7 * DAY_MS
    has_origins = False

    def __init__(self, tunnel: str) -> None:
        self._name = tunnel
        self._tunnel = TUNNELS[tunnel]

    def retention_ms(self) -> int:
        return DAY_MS

    def channels(self, *, max_age: float) -> Mapping[str, Channel]:
        stale = self._tunnel.stale
        return stale if stale is not None and max_age else self._tunnel.listing()

    def identity(self) -> str:
        return self._tunnel.id

    def beginning(self, channels: Mapping[str, Channel]) -> Position | None:
        return None

    def look(self, channel: str, at: At) -> Look:
        rows = self._tunnel.rows[channel]
        return Look(is_new=at["rows"] < len(rows) or channel in self._tunnel.closed)

    def why_gone(self, channel: str, end: At) -> str | None:
        return None

    def why_no_place(self, at: At) -> str | None:
        return None

    def client(self) -> tuple[str, Mapping[str, Any]]:
        return f"{__name__}:TunnelChannels", {"tunnel": self._name}

    def secrets(self) -> Mapping[str, str]:
        return {}

    def origin(self, channel: str) -> tuple[str, bool]:
        raise AssertionError("a channel begins at its first row")

    def push(self, position: Position) -> None:
        if not self._tunnel.loses_pushes:
            self._tunnel.kept = {channel: at.get("after") for channel, at in position.items()}

    def lacks(self, position: Position) -> list[str]:
        kept = self._tunnel.kept
        return [name for name, at in position.items() if name in kept and "after" in at and kept[name] != at["after"]]


class TunnelChannels:
    """What executors ask."""

    def __init__(self, arguments: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        self._tunnel = TUNNELS[arguments["tunnel"]]

    def pages(self, channel: str, at: At, *, most: Callable[[], int]) -> Iterator[Page]:
        begin = int(at.get("after", -1)) + 1
        while True:
            rows = self._tunnel.rows[channel]
            found = [(str(number), (rows[number],)) for number in range(begin, min(len(rows), begin + most()))]
            begin += len(found)
            at_tip = begin == len(rows)
            yield Page(rows=found, seen=NOW_MS, at_tip=at_tip, ended=at_tip and channel in self._tunnel.closed)

    def is_past(self, place: str, other: str) -> bool:
        return int(place) > int(other)

    def batch(self, rows: Sequence[Sequence[Any]]) -> Any:
        raise AssertionError("there is no Spark")


@dataclass(frozen=True)
class TunnelSource(ChannelSource):
    """:param tunnel: its name."""

    tunnel: str = "tunnel"

    schema: ClassVar[str] = "id long"

    def server(self, context: SourceContext) -> Server:
        return TunnelServer(self.tunnel)
