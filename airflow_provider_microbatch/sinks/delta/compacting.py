"""Joins small files of a Delta table, also those of different batches: one commit removes them and adds the joined
files, and says of both that no row has changed.

Each row names its batch, so that a replay or a rewind of a batch finds its rows in a joined file, as it does after
OPTIMIZE. A joined file's path names the batches of which it may have rows. Application transactions, which say that a
batch is in, stay as they are.

A commit is for exactly the version after the one that was looked at, and only if all files that it removes are in that
version: what somebody has replaced, deleted or joined meanwhile is not brought back.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.sinks.compaction import CHANGED, Compacted, Compaction, is_small, pack
from airflow_provider_microbatch.sinks.compaction.parquet import ParquetJoining
from airflow_provider_microbatch.sinks.delta import protocol
from airflow_provider_microbatch.sinks.delta.adding import add_of
from airflow_provider_microbatch.sinks.delta.intake import rules_of
from airflow_provider_microbatch.sinks.delta.log import DeltaLog, Snapshot
from airflow_provider_microbatch.sinks.delta.removing import NAMEABLE, partition_of
from airflow_provider_microbatch.sinks.placed.places import Shared, shared_by
from airflow_provider_microbatch.sinks.placed.records import Records

if TYPE_CHECKING:
    from deltalake.transaction import AddAction

_COMMIT_BYTES = 1024**3
"""Files of this size together are joined and committed before the next ones are: who is killed has done a part."""


_BATCHES = 10_000
"""A joined file has rows of so many batches at most: whether it may be joined once more is asked for each of them."""
_BELOW = 4
"""Folders that name a batch's own files, or joined ones; folders of partitions lie below."""


@dataclass(frozen=True)
class Small:
    """A small file of a version.

    :param path: relative to the table's folder.
    :param size: in bytes.
    :param partition: its partition, as the log has it.
    :param shared: the batches of which it may have rows.
    :param is_own: whether an attempt at one batch wrote it; else it is a joined file.
    """

    path: str
    size: int
    partition: Mapping[str, str | None]
    shared: Shared
    is_own: bool


@dataclass(frozen=True)
class Joined:
    """A file that is to take the place of small ones.

    :param add: the action that adds it.
    """

    path: str
    size: int
    files: Sequence[Small]
    add: AddAction


class Compacting:
    """A compaction of a table.

    :param log: the table's log.
    :param records: manifests of its batches.
    :param partition_by: the partition columns in the sink's definition.
    :param batch_of: the batch whose own file has a path; None if it is another file's path.
    :param number_of: the number of the manifest of the attempt that wrote a batch's own file; raises SinkError if it is
        gone.
    """

    def __init__(
        self,
        log: DeltaLog,
        records: Records,
        *,
        partition_by: Sequence[str],
        batch_of: Callable[[str], BatchKey | None],
        number_of: Callable[[str], int],
    ) -> None:
        self._log = log
        self._home = log.home
        self._records = records
        self._partition_by = partition_by
        self._batch_of = batch_of
        self._number_of = number_of
        self._joining = ParquetJoining()
        self._numbers: dict[str, int] = {}
        self._manifests: dict[tuple[BatchKey, int], Manifest] = {}

    def compact(self, wanted: Compaction) -> Compacted:
        """Join what is small.

        :raises SinkError: if the table cannot be written, or others commit all the time.
        """
        done = Compacted()
        snapshot = self._log.open()
        if snapshot is None:
            return done
        self._check(snapshot)
        groups = self._groups(snapshot, wanted, done)
        if wanted.dry_run:
            for group in groups:
                done.join(self._batches(group, snapshot), [one.size for one in group], [sum(one.size for one in group)])
            return done
        for portion in _portions(groups):
            joined = [one for group in portion if (one := self._joined(group, snapshot, done)) is not None]
            self._commit(joined, wanted, done)
        return done

    def _check(self, snapshot: Snapshot) -> None:
        # From a file with a deletion vector, rows that were deleted would come back.
        # All rows keep to the table's rules already.
        held, where = rules_of(snapshot), self._home.where
        protocol.check(snapshot, partition_by=self._partition_by, where=where, records=self._records, held=held)

    def _groups(self, snapshot: Snapshot, wanted: Compaction, done: Compacted) -> list[list[Small]]:
        """Files to be joined: of one partition, one lane and one kind, in the order of their batches."""
        places: dict[object, list[Small]] = {}
        # With a change feed no row of another batch may be written anew, so that a replay could not take them apart.
        alone = protocol.has_change_feed(snapshot)
        small = _small(self._files(snapshot), wanted.target_bytes)
        for file in sorted(small, key=lambda one: (one.shared.low, one.path)):
            if alone and (file.shared.low != file.shared.high or not file.is_own):
                continue
            place = (tuple(sorted(file.partition.items())), file.shared.lane, file.shared.low if alone else None)
            places.setdefault(place, []).append(file)
        groups = []
        for files in places.values():
            kinds: dict[object, list[tuple[Small, int]]] = {}
            for file in files if len(files) > 1 else ():
                try:
                    if self._may_be_joined(file, snapshot, wanted, done):
                        weighed = (file, _weight(file, wanted.target_bytes))
                        kinds.setdefault(self._kind(file.path), []).append(weighed)
                except (SinkError, OSError) as error:
                    done.leave(BatchKey(file.shared.lane, file.shared.low), str(error))
            groups += [group for found in kinds.values() for group in pack(found, wanted.target_bytes)]
        return groups

    def _kind(self, path: str) -> Hashable:
        return self._joining.kind_of(self._home.source(path), name=path)

    def _may_be_joined(self, file: Small, snapshot: Snapshot, wanted: Compaction, done: Compacted | None) -> bool:
        """:raises SinkError: if nobody can say whose its rows are."""
        for key, number in self._attempts(file, snapshot):
            if (key, number) not in self._manifests:
                self._manifests[key, number] = self._records.get(key, number)
            why = wanted.refusal(self._manifests[key, number])
            if why is not None:
                if done is not None:
                    done.leave(key, why)
                return False
        return True

    def _attempts(self, file: Small, snapshot: Snapshot) -> Iterator[tuple[BatchKey, int]]:
        """Batches of which the file may have rows, with the numbers of the manifests of these rows."""
        if file.is_own:
            attempt = "/".join(file.path.split("/")[:_BELOW])
            if attempt not in self._numbers:
                self._numbers[attempt] = self._number_of(file.path)
            yield BatchKey(file.shared.lane, file.shared.low), self._numbers[attempt]
            return
        for id in range(file.shared.low, file.shared.high + 1):
            key = BatchKey(file.shared.lane, id)
            number = snapshot.number(key)
            if number is not None:
                yield key, number

    def _batches(self, files: Sequence[Small], snapshot: Snapshot) -> set[BatchKey]:
        return {key for file in files for key, _ in self._attempts(file, snapshot)}

    def _joined(self, files: Sequence[Small], snapshot: Snapshot, done: Compacted) -> Joined | None:
        """The files as one file, which is durable, and no commit names yet; None if they cannot be joined."""
        shared = Shared(files[0].shared.lane, files[0].shared.low, max(one.shared.high for one in files))
        # A batch's own folder says for certain, to whoever looks for others' rows, that there are none.
        is_own = shared.low == shared.high and all(one.is_own for one in files)
        name = f"joined-{uuid.uuid4().hex}.parquet"
        if is_own:
            path = f"{files[0].path.rpartition('/')[0]}/{name}"
        else:
            # Below it the folders of the partition: who reads the files themselves takes its values from there.
            path = shared.folder + "/".join([*files[0].path.split("/")[_BELOW:-1], name])
        try:
            with self._home.here([one.path for one in files]) as here, self._home.writing(path) as target:
                self._joining.join(here, target)
            add = add_of(self._home, path, files[0].partition, data_change=False)
            if add is None:
                raise SinkError(f"{files[0].path} and those beside it have no rows")
        except (SinkError, FileNotFoundError) as error:
            self._home.remove(path)
            for key in self._batches(files, snapshot):
                done.leave(key, str(error))
            return None
        except BaseException:
            self._home.remove(path)
            raise
        return Joined(path, add.size, files, add)

    def _commit(self, joined: Sequence[Joined], wanted: Compaction, done: Compacted) -> None:
        """Put the joined files in place of the small ones, as far as all of these are still there.

        :raises SinkError: if others commit all the time.
        """
        since_ns, tried = time.time_ns(), False
        for snapshot in self._log.snapshots() if joined else ():
            if snapshot is None:
                raise SinkError(f"the Delta table {self._home.where} is gone.")
            self._check(snapshot)
            there = {file.path for file in self._files(snapshot)}
            if tried and any(one.path in there for one in joined):
                self._count(joined, snapshot, done)  # the answer to a commit was lost, and not the commit
                return
            kept = [one for one in joined if self._still(one, there, snapshot, wanted)]
            for one in joined:
                if one not in kept:
                    for key in self._batches(one.files, snapshot):
                        done.leave(key, CHANGED)
                    if not tried:  # after a try a version may name it: it is left to VACUUM
                        self._home.remove(one.path)
            joined = kept
            if not joined:
                return
            tried = True
            if self._log.rearrange(
                snapshot, list(_actions(joined)), info={"joined": sum(len(o.files) for o in joined)}
            ):
                self._log.sync(since_ns=since_ns)
                self._count(joined, snapshot, done)
                return
        if joined:
            raise SinkError(
                f"others commit to the Delta table {self._home.where} all the time, so that nothing could be committed "
                "in place of its small files. Nothing was changed; compact it when less is going on."
            )

    def _still(self, one: Joined, there: set[str], snapshot: Snapshot, wanted: Compaction) -> bool:
        """Whether the small files are all in the version, and may still be joined."""
        if not all(file.path in there for file in one.files):
            return False
        if not all(self._may_be_joined(file, snapshot, wanted, None) for file in one.files):
            return False
        try:
            return self._home.size(one.path) == one.size
        except FileNotFoundError:
            return False  # a VACUUM that keeps less than this takes has removed it

    def _files(self, snapshot: Snapshot) -> Iterator[Small]:
        """The files of the version that hold rows of batches alone: their own files, and joined ones."""
        for file in snapshot.files("path", "size_bytes", "partition"):
            path = unquote(file["path"])
            own, shared = self._batch_of(path), shared_by(path)
            if own is not None:
                shared = Shared(own.lane, own.id, own.id)
            if shared is not None:
                partition = partition_of(file.get("partition"))
                yield Small(path, file["size_bytes"], partition, shared, is_own=own is not None)

    def _count(self, joined: Sequence[Joined], snapshot: Snapshot, done: Compacted) -> None:
        for one in joined:
            done.join(self._batches(one.files, snapshot), [file.size for file in one.files], [one.size])


def _actions(joined: Sequence[Joined]) -> Iterator[Any]:
    from deltalake.transaction import RemoveAction

    now_ms = time.time_ns() // 1_000_000
    for one in joined:
        for file in one.files:
            yield RemoveAction(file.path, False, now_ms, file.size, dict(file.partition))
        yield one.add


def _small(files: Iterable[Small], target_bytes: int) -> Iterator[Small]:
    for file in files:
        if NAMEABLE.fullmatch(file.path) and is_small(_weight(file, target_bytes), target_bytes):
            yield file


def _weight(file: Small, target_bytes: int) -> int:
    """The file's size, or, of one with rows of very many batches, what its batches count for."""
    return max(file.size, (file.shared.high - file.shared.low + 1) * target_bytes // _BATCHES)


def _portions(groups: Sequence[list[Small]]) -> Iterator[list[list[Small]]]:
    portion, size = list[list[Small]](), 0
    for group in groups:
        portion.append(group)
        size += sum(one.size for one in group)
        if size >= _COMMIT_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
