"""What the commits of a Delta table tell of its batches: when each was published, and what has put it back since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks.delta.log import WITHDRAWN, in_words
from airflow_provider_microbatch.sinks.delta.put_back import PutBack, put_back, target_of

OUT = f"{WITHDRAWN:016x}"
"""What the commit info of a batch that was taken out has as the number of its manifest."""


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

        :param number: number of the batch's manifest, as the commit info has it; that of none for a batch taken out.
        """
        at = self._published.get((str(key), number))
        return (self._infos, None) if at is None else (self._infos[:at], self._infos[at]["version"])

    def put_back(self, since: int) -> PutBack | None:
        """What has put the table back to before a version that the history has; None if nothing has."""
        return put_back([info for info in self._restored if info["version"] > since], at=self._at, since=since)

    def to_a_moment(self, since: int) -> str | None:
        """The newest RESTORE since a version that does not tell how far it went back, in words; None if there is
        none."""
        found = (info for info in self._infos if _is_to_a_moment(info) and info["version"] > since)
        return next(map(in_words, found), None)

    def first_out(self, keys: Iterable[BatchKey]) -> int | None:
        """The oldest version in which any of the batches was taken out; None if the history does not have all of
        them."""
        found = [self._first_out.get(str(key)) for key in keys]
        known = [version for version in found if version is not None]
        return min(known) if known and len(known) == len(found) else None

    def newest_of(self, key: BatchKey) -> int | None:
        """The version of the batch's newest commit; None if the history does not have it."""
        return self._newest.get(str(key))

    @property
    def oldest(self) -> int:
        """The oldest version that the history has."""
        return int(self._infos[-1]["version"])

    @cached_property
    def lowest(self) -> int:
        """The oldest version that a RESTORE has gone back to; -1 if one does not tell that."""
        targets = [int(target_of(info) or 0) for info in self._restored]
        return -1 if any(map(_is_to_a_moment, self._infos)) else min(targets, default=self._at)

    @property
    def has_all(self) -> bool:
        """Whether the history has each commit since the oldest version that a RESTORE has gone back to."""
        return self.oldest <= max(self.lowest, 0)

    @cached_property
    def _restored(self) -> list[Mapping[str, Any]]:
        # A RESTORE to a moment does not tell how far it went back, and what others write anew may be the batch's rows.
        return [info for info in self._infos if target_of(info) is not None]

    @cached_property
    def _ours(self) -> list[tuple[int, Mapping[str, Any]]]:
        """The commits of batches, oldest first, each with its place in the history."""
        return [(at, info["microbatch"]) for at, info in enumerate(self._infos) if is_ours(info)][::-1]

    @cached_property
    def _published(self) -> dict[tuple[str, str], int]:
        """Where the commits of batches are in the history, by batch and number of the manifest."""
        # The newest counts, whatever anybody has written into an older one.
        return {(str(ours.get("batch")), str(ours.get("manifest"))): at for at, ours in self._ours}

    @cached_property
    def _newest(self) -> dict[str, int]:
        return {str(ours.get("batch")): self._infos[at]["version"] for at, ours in self._ours}

    @cached_property
    def _first_out(self) -> dict[str, int]:
        outs = (one for one in reversed(self._ours) if one[1].get("manifest") == OUT)
        return {str(ours.get("batch")): self._infos[at]["version"] for at, ours in outs}


def is_ours(info: Mapping[str, Any]) -> bool:
    """Whether this package has made the commit, or told the command that did."""
    return isinstance(info.get("microbatch"), Mapping)


def _is_to_a_moment(info: Mapping[str, Any]) -> bool:
    return info.get("operation") == "RESTORE" and target_of(info) is None
