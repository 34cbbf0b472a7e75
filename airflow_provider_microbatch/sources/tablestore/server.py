"""A tunnel as a server of channels, asked without a JVM."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any, TypeVar

from airflow_provider_microbatch.connections import Connect
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.lifetime import Close, shared
from airflow_provider_microbatch.runtime.channels import FAIL, At
from airflow_provider_microbatch.runtime.tablestore import ANOTHER, Place, counts_none, is_token, rows_in
from airflow_provider_microbatch.runtime.tunnel_calls import (
    FINISHED,
    NOT_IN_TURN,
    TERMINATED,
    WAIT,
    Calls,
    TablestoreError,
    TunnelState,
)
from airflow_provider_microbatch.sources.channels import Channel, Look
from airflow_provider_microbatch.sources.channels.graph import NEW, Position
from airflow_provider_microbatch.sources.tablestore import TablestoreSource
from airflow_provider_microbatch.sources.tablestore.access import Access

T = TypeVar("T")

_HOUR_MS = 3_600_000
_KEEPS_HOURS = 8_760  # nobody says for how long a channel that has ended is listed
_LOOKS = 10  # answers that have nothing new and are not the last ones, before a batch shall look
_WORDS = 3  # tries to say how far the reader is, while somebody else says something too


class Tunnel:
    """A tunnel. It does not tell which channels are parents: a child waits, and is left out here, until the tunnel was
    told that all its parents are read to their end, which :meth:`push` says when that is committed.

    :param source: its definition.
    :param connect: finds its connection.
    :param clock_ms: the time, milliseconds since the epoch.
    """

    splits = "channels"
    keeps_ms = _KEEPS_HOURS * _HOUR_MS
    has_origins = True

    def __init__(self, source: TablestoreSource, *, connect: Connect, clock_ms: Callable[[], int]) -> None:
        self._source = source
        self._connect = connect
        self._clock_ms = clock_ms

    def retention_ms(self) -> int:
        """The time for which the table's log is kept; requested once for each listing of channels, since a trigger
        outlives the setting."""
        held, state = self._held, self._state(max_age=float("inf"))
        if held.retention is None or held.retention[0] is not state:
            hours = self._ask(lambda calls: calls.stream_hours(self._source.table))
            if hours is None:
                raise SourceError(f"{self._source.location()}: the table has no log (its Stream is not enabled).")
            held.retention = (state, hours * _HOUR_MS)
        return held.retention[1]

    def channels(self, *, max_age: float) -> Mapping[str, Channel]:
        """All channels that do not wait for others."""
        return {
            name: Channel(id=name, closed=status == TERMINATED)
            for name, status in self._state(max_age=max_age).channels.items()
            if status != WAIT
        }

    def identity(self) -> str:
        """The id of the tunnel, which no other one ever has."""
        return f"tunnel {self._id}"

    def beginning(self, channels: Mapping[str, Channel]) -> Position | None:
        """A channel that was read to its end before the first plan has nothing for a batch; the others begin where the
        tunnel says that its reader is."""
        if not any(one.closed for one in channels.values()):
            return None
        ended: At = {"rows": 0, "finished": True, "seen": self._clock_ms()}
        return {one.id: ended if one.closed else NEW for one in channels.values()}

    def origin(self, channel: str) -> tuple[str, bool]:
        """Where the tunnel says that its reader is, and whether that is a reader's own word. Words are numbered; by one
        whose token counts no records, nothing was read."""
        token, number = self._ask(lambda calls: calls.checkpoint(self._id, channel))
        return token, token != FINISHED and number > 0 and not counts_none(token)

    def look(self, channel: str, at: At) -> Look:
        """Takes one request, with a token that is kept from look to look."""
        return self._ask(lambda calls: self._look(calls, channel, at))

    def why_gone(self, channel: str, end: At) -> str | None:
        """Looks for the last row of a range, which goes last."""
        if "after" not in end:
            return None
        place = Place.of(end["after"])
        is_there = self._ask(lambda calls: self._has(calls, channel, place))
        return None if is_there else f"the row at {end['after']:.60} is gone: retention has removed it"

    def why_no_place(self, at: At) -> str | None:
        """Checks the form of places and tokens."""
        if not is_token(at.get("origin", "none")):
            return f"{at['origin']!r:.100} is no token"
        try:
            if "after" in at:
                Place.of(at["after"])
        except ValueError as error:
            return str(error)
        return None

    def client(self) -> tuple[str, Mapping[str, Any]]:
        """The client and its arguments, none of them secret."""
        return "airflow_provider_microbatch.runtime.tablestore:TunnelChannels", {
            **self._arguments,
            "tunnel_id": self._id,
        }

    def secrets(self) -> Mapping[str, str]:
        """The keys of the connection."""
        return self._access.secrets

    def push(self, position: Position) -> None:
        """Say where the reader is in each channel: behind the last answer that was read whole. Only the end of all its
        parents has the tunnel open a child."""
        for channel, token in self._told(position).items():
            self._ask(partial(self._say, channel=channel, token=token))
            if token == FINISHED:
                self._held.listed = None

    def lacks(self, position: Position) -> list[str]:
        """Asks for each channel of which the tunnel is told."""
        ended, found = self._held.ended, []
        for channel, token in self._told(position).items():
            kept, _ = self._ask(partial(Calls.checkpoint, tunnel_id=self._id, channel=channel))
            if kept == FINISHED:
                ended.add((self._id, channel))
            elif kept != token:
                found.append(channel)
        return found

    def _told(self, position: Position) -> dict[str, str]:
        """The token that the tunnel is told, for the channels that it has: by an older listing than the position a
        channel would be missing that is there. What it knows to have ended it is not told again, nor asked for: a table
        that was split often has many such channels, and is listed with them for a year."""
        listed = self._state(max_age=self._source.discover_seconds).channels
        found = {}
        for channel, at in position.items():
            if listed.get(channel, TERMINATED) == TERMINATED or (self._id, channel) in self._held.ended:
                continue
            if at.get("finished"):
                found[channel] = FINISHED
            elif "after" in at:
                place = Place.of(at["after"])
                found[channel] = place.next or place.token
        return found

    def _say(self, calls: Calls, *, channel: str, token: str) -> None:
        for left in reversed(range(_WORDS)):
            kept, number = calls.checkpoint(self._id, channel)
            if kept in (token, FINISHED):
                return
            try:
                calls.set_checkpoint(self._id, channel, token, number=number + 1)
                return
            except TablestoreError as error:
                # Also the answer to a word that was taken in, and whose own answer was lost.
                if error.code != NOT_IN_TURN or not left:
                    raise

    def _has(self, calls: Calls, channel: str, place: Place) -> bool:
        token: str | None = place.token
        without_rows = 0
        while token is not None and without_rows < _LOOKS:
            answer = calls.records(self._id, channel, token)
            stamps = [stamp for stamp, _, _ in rows_in(answer)]
            if stamps and stamps[-1] >= place.stamp:
                return place.stamp in stamps
            if not stamps and not answer.more:
                return False
            without_rows += not stamps
            token = answer.next
        # A service that says again and again that more is there: reading finds out.
        return token is not None

    def _look(self, calls: Calls, channel: str, at: At) -> Look:
        kept, place = self._held.tokens, (at.get("after"), at.get("origin"))
        here = Place.of(at["after"]) if "after" in at else None
        before, token = kept.pop(channel, (place, None))
        if before != place or token is None:
            token = (here.next or here.token) if here is not None else at.get("origin")
        if token is None:
            token, _ = calls.checkpoint(self._id, channel)
        for _ in range(_LOOKS):
            if token == FINISHED:
                return Look(is_new=True, behind_ms=0)
            answer = calls.records(self._id, channel, token)
            stamps = [stamp for stamp, _, _ in rows_in(answer)]
            new = [stamp for stamp in stamps if here is None or stamp > here.stamp]
            if new or answer.next is None:
                behind = max(0, self._clock_ms() - new[0][1] // 1000) if new else 0
                return Look(is_new=True, behind_ms=behind)
            token = answer.next
            if not stamps and not answer.more:
                kept[channel] = (place, token)
                return Look(is_new=False, behind_ms=0)
        # Not at the tip, and nothing found yet: a batch will find out.
        return Look(is_new=True)

    @property
    def _id(self) -> str:
        return self._state(max_age=float("inf")).id

    def _state(self, *, max_age: float) -> TunnelState:
        listed = self._held.listed
        if listed is None or time.monotonic() - listed[0] > max_age:
            asked = time.monotonic()
            state = self._ask(lambda calls: calls.tunnel(self._source.table, self._source.tunnel))
            self._check(state)
            self._held.listed = listed = (asked, state)
        return listed[1]

    def _check(self, state: TunnelState) -> None:
        if state.kind != "Stream":
            raise SourceError(
                f"{self._source.location()}: the tunnel is of type {state.kind}. Its base data is the table as it is "
                "when it is read: read again it has other rows, so a batch of it could not be replayed. Create a "
                "tunnel of type Stream."
            )
        if state.expired and self._source.on_data_loss == FAIL:
            raise SourceError(
                f"{self._source.location()}: the tunnel has expired: rows went from the table's log before they were "
                "read. on_data_loss='record_gap' goes on without them, if the tunnel still gives what is left. "
                f"{ANOTHER}"
            )

    def _ask(self, question: Callable[[Calls], T]) -> T:
        """:raises SourceError: if Tablestore does not answer as it should."""
        held = self._held
        try:
            with held.lock:
                return question(held.calls)
        except TablestoreError as error:
            raise SourceError(f"{self._source.location()}: Tablestore does not do it: {error}") from error
        except ValueError as error:
            raise SourceError(f"{self._source.location()}: Tablestore's answer cannot be read: {error}") from error

    @cached_property
    def _access(self) -> Access:
        return Access.of_connection(self._connect(self._source.conn_id))

    @property
    def _arguments(self) -> dict[str, Any]:
        access = self._access
        return {"endpoint": access.endpoint, "instance": access.instance, "timeout": self._source.timeout}

    @cached_property
    def _held(self) -> _Held:
        arguments, secrets = self._arguments, self._access.secrets
        key = (__name__, self._source.table, self._source.tunnel, *arguments.values(), *sorted(secrets.items()))
        return shared(key, lambda: _opened(arguments, secrets))


class _Held:
    """A client, and what it has learned about one tunnel. Only one thread at a time uses the client."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.lock = threading.RLock()
        self.listed: tuple[float, TunnelState] | None = None
        self.retention: tuple[TunnelState, int] | None = None
        self.tokens: dict[str, tuple[tuple[Any, ...], str | None]] = {}
        self.ended: set[tuple[str, str]] = set()


def _opened(arguments: Mapping[str, Any], secrets: Mapping[str, str]) -> tuple[_Held, Close]:
    calls = Calls(arguments, secrets)
    return _Held(calls), calls.close
