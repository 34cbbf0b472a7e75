"""Tables and tunnels as Tablestore has them: the log of a table lies in shards that are split and merged, a tunnel has
a channel for each, and a child waits until all its parents are read to their end. Workers connect, keep their channels
by heartbeats, and lose them when these stay out; who has not connected reads what no worker has, as the vendor's
connector for Spark does."""

from __future__ import annotations

import base64
import itertools
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_microbatch.runtime.protobuf import Message, encoded
from tests.support.tablestore_rows import row

PUT, UPDATE, DELETE = 1, 2, 3
OPEN, CLOSING, CLOSE, TERMINATED = 1, 2, 3, 4
STATUS = {0: "WAIT", OPEN: "OPEN", CLOSING: "CLOSING", CLOSE: "CLOSE", TERMINATED: "TERMINATED"}
BASE, STREAM, BASE_AND_STREAM = 1, 2, 3
KINDS = {BASE: "BaseData", STREAM: "Stream", BASE_AND_STREAM: "BaseAndStream"}
FINISHED = "finished"


class RefusedError(Exception):
    """:param code: of the error, as Tablestore names it."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.code = code


@dataclass
class Shard:
    """A part of a table's log; what was trimmed is counted, and its records are gone."""

    id: str
    keys: tuple[float, float]
    parents: tuple[str, ...] = ()
    closed: bool = False
    records: list[tuple[int, bytes]] = field(default_factory=list)
    trimmed: int = 0


class Table:
    """:param shards: how many there are at first."""

    def __init__(self, name: str, shards: int) -> None:
        self.name = name
        self.hours: int | None = 24
        self.shards: dict[str, Shard] = {}
        self.rows: dict[tuple[Any, ...], tuple[dict[str, Any], dict[str, Any]]] = {}
        self.ago_ms = 0
        self._last = 0
        for number in range(shards):
            self._add((number / shards, (number + 1) / shards))

    def write(self, kind: int, key: dict[str, Any], columns: dict[str, Any], at: float) -> None:
        """A row is put, updated or deleted.

        :param at: which part of the keys it lies in, from 0 to 1.
        """
        (shard,) = (one for one in self.open_shards() if one.keys[0] <= at < one.keys[1])
        self._last = max(self._last + 1, time.time_ns() // 1000 - self.ago_ms * 1000)
        stamp = (0, self._last, 0)
        shard.records.append((kind, row(key, columns, stamp=stamp, deletes=kind == DELETE)))
        if kind == DELETE:
            self.rows.pop(tuple(key.values()), None)
        else:
            known = {} if kind == PUT else self.rows.get(tuple(key.values()), ({}, {}))[1]
            kept = {name: value for name, value in {**known, **columns}.items() if not isinstance(value, dict)}
            self.rows[tuple(key.values())] = (key, kept)

    def split(self, shard: str) -> None:
        """Into halves."""
        begin, end = self.shards[shard].keys
        self.shards[shard].closed = True
        for keys in ((begin, (begin + end) / 2), ((begin + end) / 2, end)):
            self._add(keys, shard)

    def merge(self, one: str, other: str) -> None:
        """Two that lie beside each other."""
        for shard in (one, other):
            self.shards[shard].closed = True
        self._add((self.shards[one].keys[0], self.shards[other].keys[1]), one, other)

    def trim(self, shard: str, count: int) -> None:
        """Retention takes the oldest records."""
        del self.shards[shard].records[:count]
        self.shards[shard].trimmed += count

    def open_shards(self) -> list[Shard]:
        """By their keys."""
        return sorted((one for one in self.shards.values() if not one.closed), key=lambda one: one.keys)

    def _add(self, keys: tuple[float, float], *parents: str) -> None:
        shard = Shard(id=f"shard-{len(self.shards):03}", keys=keys, parents=parents)
        self.shards[shard.id] = shard


@dataclass
class Channel:
    """:param shard: None for one of base data."""

    id: str
    shard: str | None
    checkpoint: str
    status: int = 0
    number: int = 0
    version: int = 0
    client: str | None = None


@dataclass
class Client:
    """A worker.

    :param timeout: seconds without a heartbeat after which it has lost its channels.
    """

    timeout: float
    seen: float


def token(*, shard: str = "", index: int = 0, key: bytes = b"") -> str:
    """One of version 2. Where it is in base data is told by a key, in a log by an iterator; no two are the same."""
    iterator = f"{shard}/{index}" if shard else None
    content = encoded({1: key or None, 2: iterator, 3: time.time_ns(), 4: index})
    return base64.b64encode(encoded({1: 2, 2: content})).decode()


class Tunnel:
    """:param earliest: it begins at the oldest record, and not with what comes from now on."""

    def __init__(self, name: str, table: Table, kind: int, *, earliest: bool) -> None:
        self.id = str(uuid.uuid4())
        self.name, self.table, self.kind = name, table, kind
        self.expired = False
        self.page = 100
        self.empty_first = False
        self.takes_words = True
        self.clock_ahead = 0.0
        self.clients: dict[str, Client] = {}
        self.channels: dict[str, Channel] = {}
        self._emptied: set[str] = set()
        if kind != STREAM:
            self.channels["BaseData_0"] = Channel("BaseData_0", None, token(key=b"0"))
        self._earliest = earliest
        self._known = {shard.id for shard in table.shards.values() if shard.closed and not earliest}
        self._begins = {} if earliest else {one.id: len(one.records) + one.trimmed for one in table.open_shards()}
        self.refresh()

    @property
    def stage(self) -> str:
        """What its reader has to read by now."""
        base = [one for one in self.channels.values() if one.shard is None]
        return "ProcessBaseData" if any(one.checkpoint != FINISHED for one in base) else "ProcessStream"

    def refresh(self) -> None:
        """New shards get channels; what waits for nothing any more is opened; who has not said anything goes."""
        if self.kind != BASE:
            for shard in self.table.shards.values():
                if shard.id not in self._known:
                    self._known.add(shard.id)
                    begin = token(shard=shard.id, index=self._begins.get(shard.id, 0))
                    self.channels[shard.id] = Channel(shard.id, shard.id, begin)
        now = self.now()
        for name, client in list(self.clients.items()):
            if client.seen + client.timeout < now:
                self.leave(name)
        for channel in self.channels.values():
            if channel.status == 0 and self._is_next(channel):
                channel.status = OPEN
            if channel.status != TERMINATED and channel.checkpoint == FINISHED and channel.client is None:
                channel.status = TERMINATED

    def now(self) -> float:
        return time.monotonic() + self.clock_ahead

    def leave(self, name: str) -> None:
        """Its channels are free again."""
        self.clients.pop(name, None)
        for channel in self.channels.values():
            if channel.client == name:
                self._free(channel)

    def heartbeat(self, name: str, said: Mapping[str, tuple[int, int]]) -> list[Channel]:
        """What a worker says of its channels, by their ids: version and status. Returns what it shall have."""
        if name not in self.clients:
            raise RefusedError("OTSResourceGone", f"client {name} is not connected")
        self.clients[name].seen = self.now()
        for id, (version, status) in said.items():
            channel = self.channels.get(id)
            if channel is None or channel.client != name or version <= channel.version:
                continue
            channel.version = version
            if status == TERMINATED and channel.checkpoint == FINISHED:
                channel.status, channel.client = TERMINATED, None
            elif status in (CLOSE, TERMINATED):
                self._free(channel)
        self.refresh()
        self._share()
        return [channel for channel in self.channels.values() if channel.client == name]

    def channel_for(self, client: str, id: str) -> Channel:
        """A channel that the client may read."""
        if id not in self.channels or self.channels[id].status == 0:
            raise RefusedError("OTSParameterInvalid", f"there is no channel {id} to be read")
        channel = self.channels[id]
        if channel.client not in (None, client) or (client in self.clients and channel.client != client):
            raise RefusedError("OTSResourceGone", f"channel {id} is another client's")
        return channel

    def read(self, channel: Channel, at: str) -> dict[int, Any]:
        """Records from a token on, as a message."""
        content = Message(Message(base64.b64decode(at)).data(2))
        if channel.shard is None:
            rows = sorted(self.table.rows.items())
            begin = int(content.data(1))
            found = [(PUT, row(key, columns, stamp=None)) for _, (key, columns) in rows[begin : begin + self.page]]
            over = begin + len(found) >= len(rows)
            following = FINISHED if over else token(key=str(begin + len(found)).encode())
            return self._answer(found, following, more=not over)
        name, _, index = content.text(2).partition("/")
        shard = self.table.shards[name]
        # What retention took is passed over without a word.
        begin = max(int(index) - shard.trimmed, 0)
        found = shard.records[begin : begin + self.page]
        if self.empty_first and found and at not in self._emptied:
            self._emptied.add(at)
            return self._answer([], at, more=True)
        end = begin + len(found)
        over = shard.closed and end >= len(shard.records)
        following = FINISHED if over else token(shard=name, index=end + shard.trimmed)
        return self._answer(found, following, more=end < len(shard.records))

    @staticmethod
    def _answer(found: list[tuple[int, bytes]], following: str, *, more: bool) -> dict[int, Any]:
        return {1: [encoded({1: kind, 2: data}) for kind, data in found], 2: following, 3: int(more)}

    def _is_next(self, channel: Channel) -> bool:
        if channel.shard is None:
            return True
        if self.stage == "ProcessBaseData":
            return False
        parents = self.table.shards[channel.shard].parents
        return all(self.channels[one].checkpoint == FINISHED for one in parents if one in self.channels)

    def _share(self) -> None:
        """Free channels go to the worker that has the fewest; one that has more than its part is asked for one."""
        for channel in self.channels.values():
            if channel.client is None and channel.status == OPEN:
                channel.client = min(sorted(self.clients), key=lambda name: len(self._of(name)))
                channel.version += 1
        shares = {name: self._of(name) for name in self.clients}
        most = max(shares.values(), key=len)
        if len(most) > min(map(len, shares.values())) + 1 and not any(one.status == CLOSING for one in most):
            most[-1].status = CLOSING
            most[-1].version += 1

    def _of(self, name: str) -> list[Channel]:
        return [one for one in self.channels.values() if one.client == name]

    @staticmethod
    def _free(channel: Channel) -> None:
        channel.client, channel.status = None, OPEN


class Instance:
    """Answers requests by their paths."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.tunnels: dict[tuple[str, str], Tunnel] = {}
        self.requests: dict[str, int] = {}
        self.refusals: dict[str, int] = {}
        self.cuts: dict[str, list[str]] = {}
        self._asked = ""
        self._numbers = itertools.count(1)

    def ask(self, path: str, given: Message) -> bytes:
        """:raises RefusedError: as Tablestore does."""
        table = given.text(1) if path in ("/DescribeTable", "/tunnel/describe", "/tunnel/list") else None
        tunnel = (
            next((one for one in self.tunnels.values() if one.id == given.text(1)), None) if table is None else None
        )
        where = table or (tunnel.table.name if tunnel is not None else "")
        self._asked = f"{where}{path}"
        self.requests[self._asked] = self.requests.get(self._asked, 0) + 1
        if self.refusals.get(where, 0):
            self.refusals[where] -= 1
            raise RefusedError("OTSTunnelServerUnavailable", "busy")
        action = path.rpartition("/")[2].lower()
        if path == "/DescribeTable":
            return self._describe_table(given)
        if action in ("create", "delete", "list", "describe"):
            found: bytes = getattr(self, f"_{action}")(given)
            return found
        if tunnel is None:
            raise RefusedError("OTSParameterInvalid", "there is no such tunnel")
        if tunnel.expired and action in ("connect", "readrecords", "heartbeat"):
            raise RefusedError("OTSTunnelExpired", "the tunnel has expired")
        tunnel.refresh()
        answer: dict[int, Any] = getattr(self, f"_{action}")(tunnel, given)
        tunnel.refresh()
        return encoded(answer)

    def next_cut(self) -> str | None:
        """How the answer to the last request is cut off behind its first field; None if it comes whole."""
        cuts = self.cuts.get(self._asked, [])
        return cuts.pop() if cuts else None

    def _table(self, name: str) -> Table:
        if name not in self.tables:
            raise RefusedError("OTSObjectNotExist", f"Requested table {name} does not exist")
        return self.tables[name]

    def _tunnel(self, given: Message) -> Tunnel:
        found = self.tunnels.get((given.text(1), given.text(2)))
        if found is None:
            raise RefusedError("OTSParameterInvalid", f"there is no tunnel {given.text(2)} of {given.text(1)}")
        found.refresh()
        return found

    def _describe_table(self, given: Message) -> bytes:
        hours = self._table(given.text(1)).hours
        key = encoded({1: "id", 2: 1})
        stream = encoded({1: int(hours is not None), 2: f"{given.text(1)}_1", 3: hours, 4: 1_700_000_000_000_000})
        meta = encoded({1: given.text(1), 2: [key]})
        throughput = encoded({1: encoded({1: 0, 2: 0}), 2: 1_700_000_000})
        return encoded({1: meta, 2: throughput, 3: encoded({1: -1, 2: 1}), 4: 1, 5: stream})

    def _create(self, given: Message) -> bytes:
        (asked,) = given.messages(1)
        table, name = self._table(asked.text(1)), asked.text(3)
        if (table.name, name) in self.tunnels:
            raise RefusedError("OTSTunnelExist", f"tunnel {name} is there")
        earliest = any(one.number(1) == 1 for one in asked.messages(5))
        made = self.tunnels[table.name, name] = Tunnel(name, table, asked.number(4), earliest=earliest)
        return encoded({1: made.id})

    def _delete(self, given: Message) -> bytes:
        tunnel = self._tunnel(given)
        del self.tunnels[tunnel.table.name, tunnel.name]
        return b""

    def _list(self, given: Message) -> bytes:
        return encoded({1: [self._info(one) for (table, _), one in self.tunnels.items() if table == given.text(1)]})

    def _describe(self, given: Message) -> bytes:
        tunnel = self._tunnel(given)
        channels = [
            encoded(
                {
                    1: one.id,
                    2: "BaseData" if one.shard is None else "Stream",
                    3: STATUS[one.status],
                    4: one.client or "",
                    5: 0,
                    6: 0,
                }
            )
            for one in tunnel.channels.values()
        ]
        return encoded({1: self._info(tunnel), 2: channels, 3: 0})

    @staticmethod
    def _info(tunnel: Tunnel) -> bytes:
        known = {1: tunnel.id, 2: KINDS[tunnel.kind], 3: tunnel.table.name, 4: "tests", 5: f"{tunnel.table.name}_1"}
        return encoded({**known, 6: tunnel.stage, 7: int(tunnel.expired), 8: tunnel.name, 9: 0, 11: time.time_ns()})

    def _connect(self, tunnel: Tunnel, given: Message) -> dict[int, Any]:
        config = given.messages(2)
        name = f"{config[0].text(2) if config else ''}-{next(self._numbers)}"
        tunnel.clients[name] = Client(timeout=config[0].number(1, 300) if config else 300, seen=tunnel.now())
        return {1: name}

    def _heartbeat(self, tunnel: Tunnel, given: Message) -> dict[int, Any]:
        said = {one.text(1): (one.number(2), one.number(3)) for one in given.messages(3)}
        channels = tunnel.heartbeat(given.text(2), said)
        return {1: [encoded({1: one.id, 2: one.version, 3: one.status}) for one in channels]}

    def _shutdown(self, tunnel: Tunnel, given: Message) -> dict[int, Any]:
        tunnel.leave(given.text(2))
        return {}

    def _getcheckpoint(self, tunnel: Tunnel, given: Message) -> dict[int, Any]:
        channel = tunnel.channel_for(given.text(2), given.text(3))
        return {1: channel.checkpoint, 2: channel.number}

    def _checkpoint(self, tunnel: Tunnel, given: Message) -> dict[int, Any]:
        channel = tunnel.channel_for(given.text(2), given.text(3))
        if not tunnel.takes_words:
            raise RefusedError("OTSNoPermissionAccess", "You have no permission to access the requested resource.")
        if given.number(5) != channel.number + 1:
            raise RefusedError("OTSSequenceNumberNotMatch", f"{given.number(5)} is not behind {channel.number}")
        channel.checkpoint, channel.number = given.text(4), given.number(5)
        return {}

    def _readrecords(self, tunnel: Tunnel, given: Message) -> dict[int, Any]:
        return tunnel.read(tunnel.channel_for(given.text(2), given.text(3)), given.text(4))
