"""Where channels begin: on record before the plan of the first batch that reads them, so that a replay begins there
too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.runtime.channels import At
from airflow_provider_microbatch.sources.channels.graph import Position, parse, render
from airflow_provider_microbatch.stores import Store

_ENTRY = "begin"


class Beginning:
    """The beginning of the first batch in each channel.

    :param state: the source's own state."""

    def __init__(self, state: Store) -> None:
        self._state = state

    def get(self) -> Offset | None:
        """The text of the position; None if none is on record yet. Writes nothing.

        :raises CorruptEntryError: if the record is torn.
        """
        data = self._state.get(_ENTRY)
        if data is None:
            return None
        text = data.decode("utf-8", errors="replace")
        return render(parse(text, where=f"{self._state.location}/{_ENTRY}"))

    def pin(self, position: Position) -> Offset:
        """Put the position on record unless one is; return the recorded one. Simultaneous planners begin at one
        place."""
        self._state.put_if_absent(_ENTRY, render(position).encode())
        found = self.get()
        assert found is not None, "it was put there, and nobody removes it"
        return found


@dataclass(frozen=True, kw_only=True)
class Origin:
    """:param place: the place of the channel's first row.
    :param behind: channels that had ended by then: the parents of the channel are among them.
    :param gap: whether rows may lie before the place that no batch has read.
    """

    place: str
    behind: Sequence[str]
    gap: bool = False

    @property
    def at(self) -> At:
        """What a read that begins there is given; a gap is told by its end."""
        return {"origin": self.place, **({"gap": True} if self.gap else {})}


class Origins:
    """The origins of channels of a server that tells them only until it hears that its reader went on. After a rewind a
    channel begins where it began then, and not where the reader was last; and it waits for its parents again.

    :param state: the source's own state.
    """

    def __init__(self, state: Store) -> None:
        self._state = state

    def get(self, channel: str) -> Origin | None:
        """The origin on record; None if no plan has read the channel. Writes nothing.

        :raises CorruptEntryError: if the record is torn.
        """
        data = self._state.get(self._entry(channel))
        if data is None:
            return None
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not _is_origin(found):
            raise CorruptEntryError(
                f"{self._state.location}/{self._entry(channel)}: {data!r:.300} does not say where channel {channel} "
                "begins. Restore the entry from a backup of the checkpoint: without it the channel begins where the "
                "server says that its reader is."
            )
        return Origin(place=found["place"], behind=tuple(found["behind"]), gap=found.get("gap", False))

    def pin(self, channel: str, origin: Origin) -> Origin:
        """Put the origin on record unless one is; return the recorded one."""
        data = {"channel": channel, "place": origin.place, "behind": list(origin.behind), "gap": origin.gap}
        self._state.put_if_absent(self._entry(channel), json.dumps(data).encode())
        found = self.get(channel)
        assert found is not None, "it was put there, and nobody removes it"
        return found

    @staticmethod
    def _entry(channel: str) -> str:
        # The server chooses the channel's name, which need not be a valid name of an entry.
        return f"origins/{hashlib.sha256(channel.encode()).hexdigest()}"


def _is_origin(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("place"), str)
        and isinstance(value.get("behind"), list)
        and all(isinstance(one, str) for one in value["behind"])
        and isinstance(value.get("gap", False), bool)
    )
