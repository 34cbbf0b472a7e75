"""What the commits of a Delta table tell of its batches: when each was published, and what has put it back since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks.delta.put_back import PutBack, put_back, target_of


class History:
    """:param infos: of the commits up to a version, newest first, as far back as they are read, or the log has them.
    :param at: that version.
    """

    def __init__(self, infos: Sequence[Mapping[str, Any]], *, at: int) -> None:
        self._infos = infos
        self._at = at

    def since(self, key: BatchKey, number: str) -> tuple[Sequence[Mapping[str, Any]], int | None]:
        """The commits since the batch was published, newest first, and the version of that; all, and None, if it is not
        among them.

        :param number: number of the batch's manifest, as the commit info has it.
        """
        at = self._published.get((str(key), number))
        return (self._infos, None) if at is None else (self._infos[:at], self._infos[at]["version"])

    def put_back(self, since: int) -> PutBack | None:
        """What has put the table back to before a version that the history has; None if nothing has."""
        return put_back([info for info in self._restored if info["version"] > since], at=self._at, since=since)

    @cached_property
    def _restored(self) -> list[Mapping[str, Any]]:
        # A RESTORE to a moment does not tell how far it went back, and what others write anew may be the batch's rows.
        return [info for info in self._infos if target_of(info) is not None]

    @cached_property
    def _published(self) -> dict[tuple[str, str], int]:
        """Where the commits of batches are in the history, by batch and number of the manifest."""
        # The newest counts, whatever anybody has written into an older one.
        ours = [(at, info["microbatch"]) for at, info in enumerate(self._infos) if is_ours(info)][::-1]
        return {(str(one.get("batch")), str(one.get("manifest"))): at for at, one in ours}


def is_ours(info: Mapping[str, Any]) -> bool:
    """Whether this package has made the commit."""
    return isinstance(info.get("microbatch"), Mapping)
