"""Maintenance: records of changes that users made by command, kept for ever; and a marker while one is made."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from shlex import quote
from typing import Any

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey, is_whole
from airflow_provider_microbatch.checkpoint.leases import Leases
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.places import ARRIVED, ARRIVING, MOVED, Places
from airflow_provider_microbatch.checkpoint.records import check_types, corrupt, decode_record, encode_record
from airflow_provider_microbatch.exceptions import CorruptEntryError, DefinitionError, MaintenanceError
from airflow_provider_microbatch.stores import Store

HOLD_SECONDS = 30.0
"""Seconds that a command counts as alive after its last sign of life. A command gives one before each step, and more
within a step that copies a checkpoint."""

OUTPUT_DROPPED = "drop output"
"""The kind of a step that takes a batch out of a table."""
FILE_PUT_AWAY = "put away"
"""The kind of a step that takes a file out of the checkpoint."""
_LOGGED = re.compile(r"(?:lanes/([^/]+)/)?(offsets|commits)/(\d+)")
_END = ".end"
APPLIED = "applied"
"""The outcome of a command that has done all its steps."""
_DECIDED = ".decided"


@dataclass(frozen=True, kw_only=True)
class Maintenance:
    """A command that changes the checkpoint.

    :param number: from 1 on.
    :param command: as it was typed, without the location.
    :param by: user and host.
    :param started_ms: milliseconds since the epoch, UTC.
    :param steps: everything that the command does, in order, as plain data: a process that finishes the command does
        exactly this.
    :param sha256: digest of the command's entry, which identifies the command: a restored checkpoint may give its
        number to another.
    """

    number: int
    command: str
    by: str
    started_ms: int
    steps: tuple[Mapping[str, Any], ...]
    sha256: str


@dataclass(frozen=True, kw_only=True)
class TakenOut:
    """What a command has taken out of a lane, or may have.

    :param to: the newest batch that it has left as it was; -1 for none.
    :param ids: numbers of the batches whose output it has taken out of a table.
    :param plans: by number, where the offset entries are that it has put away.
    :param commits: the same of commit entries.
    :param digests: by which their output is known: numbers, each with the digest of an identity.
    """

    to: int
    ids: frozenset[int]
    plans: Mapping[int, str] = field(default_factory=dict)
    commits: Mapping[int, str] = field(default_factory=dict)
    digests: frozenset[tuple[int, str]] = frozenset()


class MaintenanceLog:
    """Files ``<n>``, ``<n>.decided`` and ``<n>.end``. An entry without an end keeps every run from planning: the
    checkpoint is half changed. The entry holds all steps of its command, so that the next command finishes what a
    killed one began.

    A number that any of the three files has is never given out again, also where the entry was removed by hand: the
    files that are left would count for the next command.

    :param store: scoped to ``maintenance``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.places = Places(store)
        """Where the checkpoint has gone, or comes from."""
        self._leases = Leases(store.scoped("leases"))
        self._signs: dict[int, tuple[int, str]] = {}

    def begin(self, *, command: str, by: str, started_ms: int, steps: Sequence[Mapping[str, Any]]) -> Maintenance:
        """Keep all runs and other commands out. Durable on return.

        :raises MaintenanceError: if another command is not finished.
        """
        # The listing that saw no other command gives the number: only one of two that begin at once gets it.
        number = self.check_none() + 1
        self._signs.pop(number, None)
        # Another process that has begun under that number, while this one slept, looks for its own signs of life.
        self.hold(number, leave_others=True)
        values = {"command": command, "by": by, "started_ms": started_ms, "steps": list(steps), "waits": True}
        entry = encode_record(values)
        if not self._store.put_if_absent(str(number), entry):
            self.check_none()
            raise MaintenanceError(f"{self._store.location}: another command came first. Run this one again.")
        return Maintenance(
            number=number, command=command, by=by, started_ms=started_ms, steps=tuple(steps), sha256=_digest(entry)
        )  # fmt: skip

    def unfinished(self) -> Maintenance | None:
        """The command that has begun and has not ended, or None. One listing if there never was a command.

        :raises CorruptEntryError: if the command's entry cannot be read.
        """
        return self._newest()[1]

    def is_closed(self) -> bool:
        """Whether nothing may begin: a command has not ended, or the checkpoint is elsewhere. One listing."""
        names = set(self._store.list(""))
        return _last(names)[1] or MOVED in names or (ARRIVING in names and ARRIVED not in names)

    def _newest(self, *, if_here: bool = False) -> tuple[int, Maintenance | None]:
        """The number of the newest command, and the command if it has not ended.

        :param if_here: raise if the checkpoint is elsewhere.
        """
        names = set(self._store.list(""))
        if if_here:
            self.places.check(names)
        number, is_open = _last(names)
        return number, self._get(number) if is_open else None

    def in_progress(self) -> str | None:
        """The text of the command that is at the checkpoint and alive, or None.

        :raises MaintenanceError: if the command was killed: a person has to finish it, and waiting is no use.
        :raises MovedError: if the checkpoint is elsewhere.
        """
        found = self._newest(if_here=True)[1]
        if found is None:
            return None
        if self.held_seconds(found.number) == 0:
            self.check_none()
        return found.command

    def check_none(self) -> int:
        """The number of the newest command; 0 if there never was one. A caller that finds the same number later knows
        that no command was at the checkpoint in between.

        :raises MaintenanceError: if the newest command has begun and has not ended.
        :raises MovedError: if the checkpoint is elsewhere.
        """
        newest, found = self._newest(if_here=True)
        if found is not None:
            since = datetime.fromtimestamp(found.started_ms / 1000, tz=UTC).isoformat(timespec="seconds")
            root = self._store.location.removesuffix("/maintenance")
            raise MaintenanceError(
                f"checkpoint {root} is being changed by `microbatch {found.command}` (by {found.by}, since {since}). "
                f"Wait until that has ended. If it was killed, `microbatch repair {quote(root)}` finishes what it "
                "began; one that takes batches out of the table (--drop-output), or copies the checkpoint (copy, "
                "export, import), has to be typed again."
            )
        return newest

    def allow(self, begun: Maintenance, *, steps: bool | None) -> bool:
        """Decide, once, whether the steps of a command are done. The command itself decides when it has seen that no
        process is alive; if it was killed before, the process that finds it killed decides. A later call only returns
        the decision.

        :param steps: whether the steps are to be done, if that is not decided yet; None only looks, and decides
            nothing.
        :return: whether the steps are done.
        """
        number, own = begun.number, begun.sha256
        path, entry = f"{number}{_DECIDED}", self._store.get(str(number)) or b""
        if _digest(entry) != own:
            return False  # the checkpoint was restored from a backup that does not know the command
        if not decode_record(entry, where=self.where(number)).get("waits"):
            return True  # written by a version that decided nothing
        if steps is not None:
            self._store.put_if_absent(path, encode_record({"steps": steps, "entry": own}))
        decision = self._store.get(path)
        if decision is None and steps is None:
            return False
        decided = decode_record(decision or b"", where=f"{self._store.location}/{path}")
        # An older version names no entry. A decision about another entry of this number does not count for this one.
        return decided.get("steps") is True and decided.get("entry", own) == own

    def end(self, begun: Maintenance, *, outcome: str, ended_ms: int) -> bool:
        """Let runs and commands in again. A command whose entry is gone ends nothing: the number may be another
        command's.

        :param outcome: ``applied``, or why nothing was applied.
        :return: False if the command is not applied after all, as :meth:`is_held` tells: its end is taken back then.
        """
        if not self._is_there(begun):
            return True
        applied = begun if outcome == APPLIED else None
        return self._end(begun.number, outcome=outcome, ended_ms=ended_ms, applied=applied)

    def _end(self, number: int, *, outcome: str, ended_ms: int, applied: Maintenance | None = None) -> bool:
        path = f"{number}{_END}"
        data = encode_record({"outcome": outcome, "ended_ms": ended_ms, "token": uuid.uuid4().hex})
        is_new = self._store.put_if_absent(path, data)
        is_held = applied is None or self.is_held(applied)
        # After the put: a process that slept before it may have ended the command on a checkpoint that was restored
        # meanwhile, without the command's last steps.
        if is_new and not is_held:
            self._store.delete_if(path, data)
            return False
        if not is_new and is_held:
            # That of a process which slept, and takes its end back when it wakes: runs would be kept out once more, by
            # a command whose steps they have gone beyond.
            self._put_over(path, data)
        self._leases.forget(_lease(number), 1)
        return True

    def _put_over(self, path: str, data: bytes) -> None:
        while True:
            found = self._store.get_versioned(path)
            if found is None:
                is_put = self._store.put_if_absent(path, data)
            else:
                is_put = self._store.compare_and_put(path, data, version=found.version) is not None
            if is_put:
                return

    def give_up(self, *, by: str, ended_ms: int) -> int | None:
        """End the command that was killed, as it is: the rest of its steps is not done. Its entry need not be readable.

        :param by: user and host.
        :return: the command's number; None if there is none.
        :raises MaintenanceError: if the command still counts as alive.
        """
        names = set(self._store.list(""))
        # A checkpoint that has left goes on at the new place, not open yet: given up here it would be closed at both.
        self.places.check(names & {MOVED})
        number, is_open = _last(names)
        if not is_open:
            return None
        seconds = self.held_seconds(number)
        if seconds > 0:
            raise MaintenanceError(
                f"the command of {self.where(number)} is alive. Wait until it has ended; if it was killed, run this "
                f"again in {seconds:.0f} s."
            )
        self._end(number, outcome=f"given up by {by}", ended_ms=ended_ms)
        return number

    def over_since_ms(self, begun: Maintenance) -> int | None:
        """When the command ended, by the store's clock, whichever process ended it; None if it has not ended, and its
        steps are to be done. 0 if its entry is gone: the checkpoint was restored from a backup that knows nothing of
        the command, whose further steps would change a checkpoint that they were not planned for.

        Takes a few looks, however many steps the command has: callers ask before each step, and within some.
        """
        return self._store.modified_ms(f"{begun.number}{_END}") if self._is_there(begun) else 0

    def was_applied(self, begun: Maintenance) -> bool:
        """Whether a process has done all steps of the command, and has recorded that."""
        path = f"{begun.number}{_END}"
        data = self._store.get(path)
        return (
            data is not None and decode_record(data, where=f"{self._store.location}/{path}").get("outcome") == APPLIED
        )

    def applied(self, command: str) -> Maintenance | None:
        """The newest command of all, if it was typed so and has done all its steps; None if not. What was done by an
        older one, a newer one may have undone, or begun anew and given up half way.

        :param command: as it was typed, without the location.
        """
        with suppress(CorruptEntryError):
            number = max(numbers(self._store.list("")), default=0)
            found = self._get(number) if number else None
            if found is not None and found.command == command and self.was_applied(found):
                return found
        return None

    def is_over(self, begun: Maintenance) -> bool:
        """Whether no step of the command is to be done any more."""
        return self.over_since_ms(begun) is not None

    def _is_there(self, begun: Maintenance) -> bool:
        """Whether the command's entry is there with its bytes. The decision names the entry's digest, so that the
        entry, which holds all steps, is not read each time."""
        path = f"{begun.number}{_DECIDED}"
        decided = self._store.get(path)
        if decided is None:  # undecided yet, or a version that decided nothing wrote the entry
            return _digest(self._store.get(str(begun.number)) or b"") == begun.sha256
        entry = decode_record(decided, where=f"{self._store.location}/{path}").get("entry", begun.sha256)
        return entry == begun.sha256 and self._store.modified_ms(str(begun.number)) is not None

    def changed_ms(self) -> int | None:
        """When the newest command ended, or began if it has not ended, milliseconds since the epoch; None if there
        never was a command."""
        names = self._store.list("")
        number = max(numbers([name.removesuffix(_END) for name in names]), default=0)
        if number == 0:
            return None
        ended = self._store.get(f"{number}{_END}")
        if ended is None:
            return self._get(number).started_ms
        where = f"{self.where(number)}{_END}"
        ended_ms = decode_record(ended, where=where).get("ended_ms")
        if not is_whole(ended_ms):
            corrupt(where, "not what it should be: it does not say when it ended")
        return ended_ms

    def hold(self, number: int, *, leave_others: bool = False) -> bool:
        """Give a sign of life of the command.

        :return: False if the sign of life that this process gave before is gone; :meth:`is_held` is False from then on.
        """
        token, after = uuid.uuid4().hex, self._signs.get(number)
        sign = self._leases.renew(
            _lease(number), 1, seconds=HOLD_SECONDS, token=token, leave_others=leave_others, after=after
        )  # fmt: skip
        if sign is None:
            return False
        self._signs[number] = sign, token
        return True

    def is_held(self, begun: Maintenance) -> bool:
        """Whether the last sign of life that this process gave, if any, is the command's newest. If not, another
        process has taken the command for dead and is at its steps; or the checkpoint was restored from a backup from
        before the sign, and lacks steps that this process has done."""
        if begun.number not in self._signs:
            return True
        sign, token = self._signs[begun.number]
        return self._leases.is_there(_lease(begun.number), 1, sign, token=token)

    def held_seconds(self, number: int) -> float:
        """How long the command still counts as alive; 0 if its process has given no sign of life."""
        try:
            return self._leases.remaining_seconds(_lease(number), 1)
        except CorruptEntryError:
            # A torn lease tells no time, and no process could finish or give up the command before the lease is over.
            return max(0.0, HOLD_SECONDS - self._leases.age_seconds(_lease(number), 1))

    def written(self, path: str) -> str | None:
        """The text that the newest command to write a file of the checkpoint writes there; None without a record."""
        for number in reversed(numbers(self._store.list(""))):
            with suppress(CorruptEntryError):
                for step in self._get(number).steps:
                    if step.get("step") == "write" and step.get("path") == path:
                        return str(step.get("text"))
        return None

    def taken_out(self) -> dict[str, list[TakenOut]]:
        """By lane, what commands have taken out, oldest first. One listing where there never was a command. An entry
        that cannot be read tells nothing."""
        found = dict[str, list[TakenOut]]()
        for number in sorted(numbers(self._store.list(""))):
            with suppress(CorruptEntryError, DefinitionError):
                begun = self._get(number)
                taken = _taken_out(begun.steps)
                for lane, one in taken.items() if taken and self.allow(begun, steps=None) else ():
                    found.setdefault(lane, []).append(one)
        return found

    def where(self, number: int) -> str:
        """Address of an entry, for messages."""
        return f"{self._store.location}/{number}"

    def _get(self, number: int) -> Maintenance:
        where = self.where(number)
        entry = self._store.get(str(number)) or b""
        values = decode_record(entry, where=where)
        check_types(Maintenance, values, where=where)
        steps = values.get("steps")
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            corrupt(where, "not what it should be: its steps are no list of objects")
        try:
            return Maintenance(
                number=number,
                command=values["command"],
                by=values["by"],
                started_ms=values["started_ms"],
                steps=tuple(steps),
                sha256=_digest(entry),
            )
        except KeyError as error:
            corrupt(where, f"not what it should be: {error} is missing")


def _last(names: Collection[str]) -> tuple[int, bool]:
    """The number of the newest command, 0 for none; and whether it has not ended."""
    number = max(numbers([name.removesuffix(_END).removesuffix(_DECIDED) for name in names]), default=0)
    return number, str(number) in names and f"{number}{_END}" not in names


def _taken_out(steps: Sequence[Mapping[str, Any]]) -> Mapping[str, TakenOut]:
    # A torn entry that a command writes again in its place is none that is read again.
    rebuilt = {str(step.get("path")) for step in steps if step.get("step") == "write"}
    found = dict[str, _Steps]()
    for step in steps:
        entry = _LOGGED.fullmatch(str(step.get("path"))) if step.get("step") == FILE_PUT_AWAY else None
        if entry is not None and entry[2] == "commits":
            found.setdefault(entry[1] or LIVE, _Steps()).commits[int(entry[3])] = str(step.get("target"))
        elif entry is not None and entry[0] not in rebuilt:
            of, id = found.setdefault(entry[1] or LIVE, _Steps()), int(entry[3])
            of.tos.append(id - 1)
            of.plans[id] = str(step.get("target"))
            of.digests.add((id, str(step.get("sha256"))))
        elif step.get("step") == OUTPUT_DROPPED:
            key, to, identity = BatchKey.parse(str(step.get("key"))), step.get("to"), step.get("identity")
            of = found.setdefault(key.lane, _Steps())
            # Those of after a backup have no plan in the log, and a version before has not recorded it.
            of.tos.append(to if is_whole(to) else key.id - 1)
            of.ids.add(key.id)
            if isinstance(identity, Mapping):  # of an entry that was written again, or adopted, it is another's digest
                of.digests.add((key.id, str(identity.get("digest"))))
    return {lane: of.taken_out() for lane, of in found.items() if of.tos}


@dataclass(frozen=True)
class _Steps:
    """What the steps of a command tell of a lane."""

    tos: list[int] = field(default_factory=list)
    ids: set[int] = field(default_factory=set)
    plans: dict[int, str] = field(default_factory=dict)
    commits: dict[int, str] = field(default_factory=dict)
    digests: set[tuple[int, str]] = field(default_factory=set)

    def taken_out(self) -> TakenOut:
        return TakenOut(
            to=min(self.tos),
            ids=frozenset(self.ids),
            plans=self.plans,
            commits=self.commits,
            digests=frozenset(self.digests),
        )


def _digest(entry: bytes) -> str:
    return hashlib.sha256(entry).hexdigest()


def _lease(number: int) -> BatchKey:
    return BatchKey("maintenance", number)
