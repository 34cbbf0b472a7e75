"""What a source of channels reads, checked to be that of the first plan. Another stream has other rows at the same
places, and a tunnel that was made again begins where it likes."""

from __future__ import annotations

import json
from shlex import quote

from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.stores import Store

_ENTRY = "identity"


class Identity:
    """:param state: the source's own state.
    :param name: name of the source, for messages.
    :param location: what the definition names, for messages.
    :param checkpoint: address of the checkpoint, for messages.
    """

    def __init__(self, state: Store, *, name: str, location: str, checkpoint: str) -> None:
        self._state = state
        self._name = name
        self._location = location
        self._checkpoint = checkpoint
        self._found: str | None = None

    def pin(self, identity: str) -> None:
        """Put the identity on record unless one is. A checkpoint that was written before there was a record gets that
        of its next plan."""
        if self._recorded() is None:
            self._state.put_if_absent(_ENTRY, json.dumps(identity).encode())

    def another(self, identity: str) -> str | None:
        """What is there instead of what was read, with the way on; None if it is the same, or none is on record. Writes
        nothing.

        :raises CorruptEntryError: if the record is torn.
        """
        recorded = self._recorded()
        if recorded is None or recorded == identity:
            return None
        new = f"{self._name}_2"
        return (
            f"{self._location} is not what was read before: it was {recorded}, and is {identity}. A place in the one "
            "is none in the other, so rows would be left out, or come twice. Name again the one that was read; or read "
            "the new one as a source of a name that was never used: give it that name in the pipeline, such as "
            f"{new!r}, and say that it is new: `microbatch add-source {quote(self._checkpoint)} {quote(new)}`. It is "
            "read from its own beginning on: what it has of what was read comes again."
        )

    def _recorded(self) -> str | None:
        if self._found is None and (data := self._state.get(_ENTRY)) is not None:
            try:
                found = json.loads(data)
            except ValueError:
                found = None
            if not isinstance(found, str):
                raise CorruptEntryError(
                    f"{self._state.location}/{_ENTRY}: {data!r:.300} does not say what is read. Restore the entry from "
                    "a backup of the checkpoint: without it another stream or tunnel is taken for the one that was "
                    "read."
                )
            self._found = found
        return self._found
