"""Tells which batches a version does not have as they were published: no file can have rows of them, or the files are
those of before a replay. Somebody has restored the table, or deleted their rows.

The log tells it without a look into a file: paths of a batch's own files name the batch, and of files that others have
written or merged the statistics do, as far as they are there. What might be in such a file counts as there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks.delta.history import History, is_ours
from airflow_provider_microbatch.sinks.delta.log import Snapshot, in_words
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.placed.places import DATA, REST, folder_of_batch, shared_by

_COMMITS = 1000
"""How many of the newest commits are searched for the one that took a batch's rows out."""
_NAMED = 3
_MOVES_NO_ROW = ("OPTIMIZE", "VACUUM START", "VACUUM END", "ADD COLUMN", "SET TBLPROPERTIES", "CREATE TABLE")

_Bounds = tuple[Any, Any]
"""The least and the greatest value in a file; None: not known."""


class Present:
    """The batches of one version. Each figure is read once, however many batches are asked for.

    :param snapshot: the table at that version.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.version = snapshot.version
        self._versions: dict[int, Present | None] = {self.version: self}

    def may_have(self, key: BatchKey) -> bool:
        """Whether a file of the version may have rows of the batch."""
        own, shared = self._files
        return folder_of_batch(key) in own or _is_in_any(key, shared)

    def may_share(self, key: BatchKey) -> bool:
        """Whether a file that does not tell of which attempt its rows are may have some of the batch."""
        return _is_in_any(key, self._files[1])

    def taken_out_by(self, key: BatchKey, number: str) -> str:
        """The commits of others since the batch was published that may have taken rows out, newest first, in words.

        :param number: number of the batch's manifest, as the commit info has it.
        """
        infos, _ = self._newest.since(key, number)
        found = [in_words(info) for info in infos if not (is_ours(info) or _appends(info) or _moves_no_row(info))]
        return "; ".join(found[:_NAMED]) + ("; …" if len(found) > _NAMED else "")

    def put_back_by(self, key: BatchKey, number: str, *, for_sure: bool, was_there: bool = False) -> str | None:
        """The commits of others that have put the table back to before the batch was published, or taken out, in words:
        what it has of the batch is of an attempt before. None if there are none, or if the log does not tell any more.

        :param number: as for :meth:`taken_out_by`.
        :param for_sure: None too if others may have brought the rows since.
        :param was_there: whether the log had that commit; then it is older than all that it still has.
        """
        infos, since = self._newest.since(key, number)
        if since is None:
            away = self._newest.put_back_to_before() if was_there else None
        else:
            away = self._newest.put_back(since)
        if away is None or not self._had(key, away.last):
            return None
        if not for_sure:
            return away.by
        later = (info for info in infos if info["version"] > away.last)
        return None if any(not (is_ours(info) or _brings_no_row(info)) for info in later) else away.by

    def last_of(self, key: BatchKey) -> int | None:
        """See :meth:`History.last_of`."""
        return self._newest.last_of(key)

    def _had(self, key: BatchKey, version: int) -> bool:
        """Whether a version may have had rows of the batch, or the log does not have it any more: a RESTORE brings no
        rows back that its own version lacks, as where somebody has copied them there since."""
        if version not in self._versions:
            then = self.snapshot.log.at(version)
            self._versions[version] = None if then is None else Present(then)
        had = self._versions[version]
        return had is None or had.may_have(key)

    def own_of(self, key: BatchKey) -> Collection[str]:
        """A file of each attempt at the batch that the version has in the batch's own folder."""
        return self._files[0].get(folder_of_batch(key), {}).values()

    @cached_property
    def _newest(self) -> History:
        return History(self.snapshot.history(_COMMITS), now=self.snapshot)

    @cached_property
    def _files(self) -> tuple[dict[str, dict[str, str]], set[tuple[_Bounds, _Bounds]]]:
        """Folders of batches with files, each with a file of each attempt by the name of the attempt's folder in it,
        and bounds of lane and id in all other files."""
        own, shared = dict[str, dict[str, str]](), set[tuple[_Bounds, _Bounds]]()
        lane, number = RESERVED_COLUMNS
        for file in self.snapshot.files("path", "num_records", "null_count", "min", "max"):
            path = unquote(file["path"])
            if path.startswith(f"{DATA}/") and not path.startswith(REST):
                attempt = path.split("/")[:4]
                own.setdefault("/".join(attempt[:3]) + "/", {})[attempt[-1]] = path
            elif (joined := shared_by(path)) is not None:
                shared.add(((joined.lane, joined.lane), (joined.low, joined.high)))
            elif not has_none_of_ours(file):
                shared.add((bounds(file, lane), bounds(file, number)))
        return own, shared


def _appends(info: Mapping[str, Any]) -> bool:
    parameters = info.get("operationParameters") or {}
    return info.get("operation") == "WRITE" and str(parameters.get("mode")).casefold() == "append"


def _brings_no_row(info: Mapping[str, Any]) -> bool:
    return _moves_no_row(info) or info.get("operation") == "DELETE"


def _moves_no_row(info: Mapping[str, Any]) -> bool:
    return info.get("operation") in _MOVES_NO_ROW


def has_none_of_ours(file: Mapping[str, Any]) -> bool:
    """Whether no row of the file names a lane, as rows that others append."""
    rows, nulls = file.get("num_records"), (file.get("null_count") or {}).get(RESERVED_COLUMNS[0])
    return rows is not None and rows == nulls


def bounds(file: Mapping[str, Any], column: str) -> _Bounds:
    """The least and the greatest value of a column in the file."""
    return (file.get("min") or {}).get(column), (file.get("max") or {}).get(column)


def _is_in_any(key: BatchKey, files: Iterable[tuple[_Bounds, _Bounds]]) -> bool:
    """Whether a batch is within the bounds of any of these files."""
    return any(_is_within(key.lane, lanes) and _is_within(key.id, ids) for lanes, ids in files)


def _is_within(value: Any, bounds: _Bounds) -> bool:
    low, high = bounds
    return low is None or high is None or low <= value <= high
