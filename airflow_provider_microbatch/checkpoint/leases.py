"""Leases: the sign of life that an attempt's holder gives, by the store's clock."""

from __future__ import annotations

import math
import time

from airflow_provider_microbatch.checkpoint.key import BatchKey, is_lane
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.records import corrupt, decode_record, encode_record
from airflow_provider_microbatch.stores import Store

LEASE_SECONDS = 60.0
"""Seconds that an attempt counts as alive after its holder's last sign of life. The holder renews at a third of them,
so two renewals may fail before the attempt is taken for dead."""

_LONGEST_SECONDS = 10 * 366 * 24 * 60 * 60
"""No lease runs longer: one that was written as endless would keep retention from its lane for ever."""


class Leases:
    """Files ``<lane>/<id>-<epoch>-<n>``; the highest ``n`` counts, and its lease runs from the moment the store took
    the file.

    The file of a lease that is over stays until :meth:`forget`, which is called when nothing of the attempt is left to
    do. So the listing of a lane is the list of its unfinished attempts, however many batches there have been.

    A lease tells which attempt is alive, and is no lock: two attempts that both believe to be alive are kept apart by
    the fence.

    :param store: scoped to ``leases``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._began: tuple[BatchKey, int, float] | None = None
        """The lease that this process has begun last, and when, by :func:`_now`."""

    def begin(self, key: BatchKey, epoch: int, *, seconds: float = LEASE_SECONDS) -> bool:
        """Write the first lease of an epoch that may be taken next; False if there is one. A process that loses the
        race for the epoch has not touched the winner's lease."""
        began = _now()
        data = encode_record({"seconds": seconds, "parked": False})
        if self._renewals(key, epoch) or not self._store.put_if_absent(_path(key, epoch, 1), data):
            return False
        self._began = (key, epoch, began)
        return True

    def confirm(self, key: BatchKey, epoch: int, *, seconds: float = LEASE_SECONDS) -> None:
        """Renew the lease of an epoch that is taken now, unless this process has begun the lease only just now: it may
        be that of another process that was here before, and long over, and this one may have slept. No clock of a
        machine goes on while its hypervisor pauses it, and whoever finds the lease to be over then removes it: so it is
        looked for, too. An attempt without one does not hold back retention and ``clean_source``."""
        began = self._began
        # Not "later than": without a clock that goes on during a pause, the difference is no number.
        is_new = began is not None and began[:2] == (key, epoch) and _now() - began[2] <= seconds / 6
        if not is_new or self._store.modified_ms(_path(key, epoch, 1)) is None:
            self.renew(key, epoch, seconds=seconds)

    def renew(
        self,
        key: BatchKey,
        epoch: int,
        *,
        seconds: float = LEASE_SECONDS,
        parked: bool = False,
        token: str = "",
        leave_others: bool = False,
        after: tuple[int, str] | None = None,
    ) -> int | None:
        """Count the attempt as alive for ``seconds`` from now on. The renewals before this one are deleted.

        :param parked: no process runs the attempt: its stage only waits, for audits. The janitor leaves the attempt
            alone, and another run may take the batch up.
        :param token: the text by which :meth:`is_there` recognises this renewal: after a backup is restored, another
            renewal may get its number.
        :param leave_others: delete no earlier renewal: its holder may look for it.
        :param after: the number and the token of the renewal that this one goes on from.
        :return: the number of the renewal; None if the renewal in ``after`` is gone, as :meth:`is_there` tells. Nothing
            is renewed then.
        """
        before = self._renewals(key, epoch)
        number = max(before, default=0) + 1
        data = encode_record({"seconds": seconds, "parked": parked, **({"token": token} if token else {})})
        while not self._store.put_if_absent(_path(key, epoch, number), data):
            number += 1
        # After the put: a backup that is restored before the put lacks the earlier renewal, and a backup that is
        # restored later lacks this one.
        if after is not None and not self.is_there(key, epoch, after[0], token=after[1]):
            self._store.delete_if(_path(key, epoch, number), data)
            return None
        if not leave_others:
            self._store.delete_many(_path(key, epoch, old) for old in before)
        return number

    def is_there(self, key: BatchKey, epoch: int, renewal: int, *, token: str) -> bool:
        """Whether the renewal still counts: the lease was neither renewed nor forgotten since, and no backup from
        before the renewal was restored."""
        path = _path(key, epoch, renewal)
        data = self._store.get(path)
        return data is not None and decode_record(data, where=f"{self._store.location}/{path}").get("token") == token

    def remaining_seconds(self, key: BatchKey, epoch: int, *, parked: bool = False) -> float:
        """How long the attempt still counts as alive; 0 if its lease has run out or there is none.

        :param parked: count a parked attempt too.
        :raises CorruptEntryError: if the lease cannot be read.
        """
        while renewals := self._renewals(key, epoch):
            path = _path(key, epoch, renewals[-1])
            written, data = self._store.modified_ms(path), self._store.get(path)
            if written is None or data is None:
                continue  # renewed or forgotten since it was listed
            where = f"{self._store.location}/{path}"
            values = decode_record(data, where=where)
            seconds = values.get("seconds")
            if not isinstance(seconds, (int, float)) or not 0 <= seconds <= _LONGEST_SECONDS:
                corrupt(where, "not what it should be: it lacks seconds, or they are no time that a stage waits")
            if values.get("parked") and not parked:
                return 0.0
            return max(0.0, seconds - (self._store.now_ms() - written) / 1000)
        return 0.0

    def age_seconds(self, key: BatchKey, epoch: int) -> float:
        """Seconds since the attempt's lease was written, whatever its content; infinite if there is none."""
        written = [self._store.modified_ms(_path(key, epoch, number)) for number in self._renewals(key, epoch)]
        newest = max((one for one in written if one is not None), default=None)
        return math.inf if newest is None else (self._store.now_ms() - newest) / 1000

    def forget(self, key: BatchKey, epoch: int) -> None:
        """Remove the attempt's lease: nothing of the attempt is left to do."""
        self._store.delete_many(_path(key, epoch, number) for number in self._renewals(key, epoch))

    def unfinished(self, lane: str | None = None) -> list[tuple[BatchKey, int]]:
        """Batch and epoch of all attempts that have a lease, alive or not. One listing a lane."""
        found = set()
        for name in filter(is_lane, self._store.folders("")) if lane is None else [lane]:
            for batch_id, epoch, _ in self._files(name):
                found.add((BatchKey(name, batch_id), epoch))
        return sorted(found)

    def _renewals(self, key: BatchKey, epoch: int) -> list[int]:
        return sorted(number for *attempt, number in self._files(key.lane) if attempt == [key.id, epoch])

    def _files(self, lane: str) -> list[tuple[int, int, int]]:
        split = [numbers(name.split("-")) for name in self._store.list(lane)]
        return [(parts[0], parts[1], parts[2]) for parts in split if len(parts) == 3]


def _path(key: BatchKey, epoch: int, number: int) -> str:
    return f"{key.lane}/{key.id}-{epoch}-{number}"


def _now() -> float:
    """Seconds by a clock that goes on while the machine is paused, as the clocks that leases run by do. Endless where
    there is none: whatever has begun then has begun long ago."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return math.inf if clock is None else time.clock_gettime(clock)
