"""The file source opened for its checkpoint: plans ranges into the source log and describes how to read them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.handover import INDEX
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceChangedError, SourceError
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.runtime.streaming_job import Stream
from airflow_provider_microbatch.sources import UNLIMITED, Figures, OpenSource, ReadLimit, SourceContext, Split
from airflow_provider_microbatch.sources.file import PARSED, FileSource
from airflow_provider_microbatch.sources.file.appending import Appender
from airflow_provider_microbatch.sources.file.batch import total
from airflow_provider_microbatch.sources.file.candidates import Candidates
from airflow_provider_microbatch.sources.file.clean import Cleaner
from airflow_provider_microbatch.sources.file.cleaning import Cleaning, CleaningRecord, Entries
from airflow_provider_microbatch.sources.file.known_names import KnownNames, is_due, not_read_by_any, others
from airflow_provider_microbatch.sources.file.learned import PARTITIONS, SCHEMA, Learned
from airflow_provider_microbatch.sources.file.left_out import gone
from airflow_provider_microbatch.sources.file.log import (
    NOTHING,
    PlannedFile,
    SourceLog,
    entries_of,
    known_as,
    log_id,
    offset_of,
)
from airflow_provider_microbatch.sources.file.notifications import QueueAddress
from airflow_provider_microbatch.sources.file.notifications.hints import NOTIFIED, Hints
from airflow_provider_microbatch.sources.file.notifications.queue import Queue
from airflow_provider_microbatch.sources.file.order import FULL_LISTING_SECONDS, ORDER, ListingOrder
from airflow_provider_microbatch.sources.file.place import Look
from airflow_provider_microbatch.sources.file.present import Located, deleted, locate, not_as_read, usable
from airflow_provider_microbatch.sources.file.reads import FileReads
from airflow_provider_microbatch.sources.file.seen import SeenFiles
from airflow_provider_microbatch.sources.file.taken import Taken
from airflow_provider_microbatch.sources.file.window import SPLITS, FileWindow
from airflow_provider_microbatch.sources.intervals import HeldRanges, Interval, IntervalSurvey

log = logging.getLogger(__name__)

_BOUND = "bound"
_SELECTS = ("path", "recursive", "file_name_pattern", "max_file_age")


class OpenFileSource(OpenSource):
    """Offsets are Spark's ``{"logOffset":N}``; range ``(a, b]`` is the source log's entries a+1 to b.

    A plan lists, leaves out the files that the log holds, and appends one entry by put-if-absent before the offset log
    is written. Two planners, or one that died after its append, therefore agree: a planner that finds an entry after
    its start uses the entry unchanged. A file that appears while the listing runs is planned now or the next time,
    never twice, since "new" means "not in the log", whatever its mtime.

    The lanes share the log, and an entry belongs to one of them: a range of the lane ``(a, b]`` is that lane's entries
    of a+1 to b. A planner that appends has seen all earlier entries, so no file is ever in two entries.
    """

    def __init__(self, source: FileSource, context: SourceContext) -> None:
        self._source = source
        self._name = context.name
        self._clock_ms = context.clock_ms
        self._state = context.state
        self._lane = context.lane
        self._place = source.place(context.connect)
        self._log = SourceLog(context.log, top=self._place.top, kept=context.kept)
        self._being_read = context.being_read
        self._committed = context.committed
        self._cleaning = CleaningRecord(context.state, before=context.states_before, kept=context.kept)
        self._learned = Learned(context.state)
        self._reads = FileReads(source, self._place, name=context.name, learned=self._learned)
        self._seen = SeenFiles(self._log, self._state)
        self._listing = source.listing()
        self._candidates = Candidates(source, self._place, self._seen, name=context.name, clock_ms=context.clock_ms)
        self._taken = Taken(self._place, base=self._listing.base, context=context)
        self._archive = source.archive_path()
        self._order: ListingOrder | None = None
        if source.ordered:
            self._order = ListingOrder(
                self._log,
                self._state,
                # A user who changes one of these asks for files that were passed over.
                selects={name: getattr(source, name) for name in _SELECTS},
                full_listing_seconds=source.full_listing_seconds or FULL_LISTING_SECONDS,
                clock_ms=context.clock_ms,
            )
        self._hints = self._hints_of(context)
        self._appender = Appender(
            source,
            name=context.name,
            lane=context.lane,
            source_log=self._log,
            seen=self._seen,
            candidates=self._candidates,
            order=self._order,
            hints=self._hints,
            known_names=self._known_names,
            clock_ms=context.clock_ms,
        )

    @property
    def splits(self) -> str:
        return SPLITS

    def check(self) -> None:
        """Check that the files can be listed, and cleaned where ``clean_source`` is set."""
        try:
            self._place.check(self._listing, archive=self._archive, cleans=self._source.clean_source is not None)
        except SourceError as error:
            raise self._error(str(error)) from error

    def has_new(self, position: Offset | None) -> bool:
        """True if the log is ahead of ``position``, or as soon as one eligible file is not in the log."""
        self._seen.refresh()
        self._check_nothing_forgotten()
        start = self._checked(position)
        bound = self._bound()
        if bound is not None:
            return self._log.next_of(self._lane, start, bound) is not None
        ahead = self._log.next_of(self._lane, start, self._seen.latest)
        if ahead is not None:
            return True
        way = self._order or self._hints
        starts = [None] if way is None else way.starts()
        if any(next(self._candidates.eligible(start), None) is not None for start in starts):
            return True
        if is_due(self._log.location):
            self._known_names().warn(self._name)  # no plan follows that would warn
        return False

    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | None:
        """Append the next entry to the source log, or use the entry that is there."""
        self._seen.refresh()
        self._check_nothing_forgotten()
        begin = self._checked(start)
        self._seen.save()
        bound = self._bound()
        if bound is None and self._source.bounded:
            bound = self._pin_bound()
        while True:
            ahead = self._log.next_of(self._lane, begin, self._seen.latest if bound is None else bound)
            if ahead is not None or bound is not None or not self._appender.append(limit):
                # A sensor cannot write the index: every question would read a large entry that is not in the index.
                self._seen.save()
                return start if ahead is None else offset_of(ahead)

    def absent(self, start: Offset | None, end: Offset | None) -> str | None:
        """The reason for a range without files, of a source that has read none yet and is given no schema."""
        if self._reads.knows_schema or (start != end and self._usable(self._range(log_id(start), log_id(end)))):
            return None
        return (
            "there is no file in it, and none has been read yet to infer a schema from. Give it a schema: "
            "FileSource(…, schema='id long, …')."
        )

    def read(self, start: Offset | None, end: Offset | None) -> Read:
        """Return a read of the paths, grouped by their partition columns, with the schema as far as it is known."""
        planned = self._range(log_id(start), log_id(end))
        files = self._usable(planned)
        return self._reads.of(files, left_out=_left_out(planned, files))

    def telling_refused(self, read: Read) -> Read:
        if self._source.format not in PARSED:
            return read
        return replace(read, arguments={**read.arguments, "keeps_refused": True})

    def known_as(self, start: Offset | None, end: Offset | None) -> str | None:
        """Return a digest of the files as they were planned: log ids differ between checkpoints."""
        return known_as(self._range(log_id(start), log_id(end)))

    def splits_of(self, start: Offset | None, end: Offset | None) -> Sequence[Split]:
        """Return a split for each file, as soon as the columns are known."""
        planned = self._range(log_id(start), log_id(end))
        files = self._usable(planned)
        return self._reads.splits(files, left_out=_left_out(planned, files))

    def stream(self, start: Offset | None, end: Offset | None) -> Stream | None:
        """Return the range as the first or second entry of a log of Spark's own source."""
        if not self._reads.may_be_streamed:
            return None
        planned = self._range(log_id(start), log_id(end))
        files = self._usable(planned)
        return self._reads.stream(
            files, path=self._listing.base, begins=start is None, left_out=_left_out(planned, files)
        )

    def left_out(
        self, start: Offset | None, end: Offset | None, *, told: Mapping[str, Any] | None = None
    ) -> str | None:
        """Describe the missing planned files that ``on_missing="skip"`` leaves out."""
        if self._source.on_missing == "fail":
            return None
        planned = self._range(log_id(start), log_id(end))
        return gone(_left_out(planned, self._usable(planned)), before=(told or {}).get("left_out", ()))

    def verify(self, start: Offset | None, end: Offset | None, told: Mapping[str, Any] | None = None) -> None:
        """Repeat the check of :meth:`read`, and check that Spark has read every file that is there."""
        files = self._usable(self._range(log_id(start), log_id(end)))
        if told is not None and (why := not_as_read(files, told)) is not None:
            raise SourceChangedError(f"source {self._name!r}: {why}")

    def torn(self) -> Iterator[tuple[str, str]]:
        """Yield the parts of the pinned schema and partition columns that cannot be read."""
        return self._learned.torn()

    def learned(self, facts: dict[str, Any]) -> None:
        """Pin an inferred schema, and partition columns that the schema does not name.

        :raises SourceError: if another attempt has pinned other ones.
        """
        for name in (SCHEMA, PARTITIONS):
            value = facts.get(name)
            if value is not None and not self._learned.pin(name, value):
                raise self._error(
                    f"another attempt inferred and pinned another schema ({name}). Run the batch again: "
                    "it will use the pinned one."
                )

    def commit(self, end: Offset) -> None:
        """Archive or delete the files that are due and committed, if the source is to be cleaned."""
        if self._source.clean_source is None:
            # Entries that are not cleaned by now count as committed before cleaning is switched on again. But a cleaner
            # that deletes may sleep, or have died, and only a cleaner can say that the deletion is over.
            self._cleaning.change(
                lambda found: replace(found, due=Entries().with_(n for n in found.due if n in found.deleting))
            )
            return
        cleaner = Cleaner(
            self._log,
            self._cleaning,
            place=self._place,
            base=self._listing.base,
            archive=self._archive,
            taken=self._taken,
        )
        try:
            cleaner.clean(being_read=self._held, committed=self._committed)
        except SourceError as error:
            raise self._error(str(error)) from error

    def _held(self) -> set[int]:
        return {number for one in self._being_read() for number in entries_of(one.start, one.end)}

    def keep(self, start: Offset | None, end: Offset | None) -> None:
        """Make ``clean_source`` leave the files of the range where they are."""
        kept = entries_of(start, end)
        self._cleaning.change(
            lambda found: replace(found, due=found.due.without(number for number in found.due if number in kept))
        )

    def release(self, start: Offset | None, end: Offset | None) -> None:
        """Make the files of the range due, if the source is to be cleaned."""
        if self._source.clean_source is None:
            self.keep(start, end)
            return
        read = {one.log_id for one in self._log.anew().range(log_id(start), log_id(end)) if one.lane == self._lane}
        self._cleaning.change(
            lambda found: replace(found.archiving(self._listing.base, self._archive), due=found.due.with_(read))
        )

    def finished(self, position: Offset | None) -> bool:
        """Whether the source is bounded and its first listing is read."""
        if not self._source.bounded:
            return False
        bound = self._bound()
        return bound is not None and log_id(position) >= bound

    def not_replayable(self, start: Offset | None, end: Offset | None) -> str | None:
        """The reason if files of the range were deleted by ``clean_source``; None otherwise."""
        cleaned = self._cleaned()
        files = self._range(log_id(start), log_id(end)) if cleaned.done.runs else []
        found = (self._locate(file, cleaned, self._place.look) for file in files if file.log_id in cleaned.done)
        why = deleted(found, cleaned, deletes=self._source.clean_source == "delete")
        return None if why is None else f"source {self._name!r}: {why}"

    def damaged(self, end: Offset | None) -> Iterator[tuple[Offset, str]]:
        """Yield the entries of the source log that are missing or torn."""
        for number, reason in self._log.damaged(log_id(end)):
            yield str(offset_of(number)), reason

    def forget_after(self, end: Offset | None) -> None:
        """Remove the later entries of the source log, and everything that was derived from them."""
        last = log_id(end)
        if any(number > last for number in self._cleaned().done):
            raise self._error("clean_source has taken files of what is to be read again; nobody knows which.")
        try:
            self._log.remove_after(last)
        except CorruptEntryError as error:
            raise self._error(str(error)) from error
        for derived in (INDEX, ORDER, NOTIFIED):
            for name in self._state.list(derived):
                self._state.delete(f"{derived}/{name}")
        if (bound := self._bound()) is not None and bound > last:
            self._state.delete(_BOUND)

    def check_offset(self, offset: Offset) -> None:
        """Check that the position is an entry of the source log."""
        self._seen.refresh()
        try:
            number = log_id(offset)
        except CorruptEntryError as error:
            raise self._error(str(error)) from error
        if not NOTHING < number <= self._seen.latest:
            there = f"0 to {self._seen.latest}" if self._seen.latest > NOTHING else "nothing yet"
            raise self._error(f"there is no {offset}: the source log {self._log.location} has {there}.")

    def is_after(self, offset: Offset | None, other: Offset | None) -> bool:
        """Compare log ids, which are ascending."""
        return log_id(offset) > log_id(other)

    def lag(self, position: Offset | None) -> Figures:
        """Files and bytes that no batch up to ``position`` has: planned ahead of it, or not planned. Lists all files.

        Entries that Spark wrote hold no sizes; if one lies ahead, bytes are None.
        """
        self._seen.refresh()
        ahead = self._range(self._checked(position), self._seen.latest)
        sizes: list[int | None] = [file.size for file in ahead]
        if self._bound() is None:
            sizes += [found.size for found in self._candidates.eligible()]
        return Figures(splits=len(sizes), bytes=total(sizes))

    def lag_in_words(self, position: Offset | None) -> dict[str, int]:
        """Empty, since the lag would take a listing of all files for each batch."""
        return {}

    def describe(self, start: Offset | None, end: Offset | None) -> Figures:
        """The range's files, and their bytes where the log has sizes."""
        sizes = [file.size for file in self._range(log_id(start), log_id(end))]
        return Figures(splits=len(sizes), bytes=total(sizes))

    def survey_interval(self, interval: Interval, held: HeldRanges) -> IntervalSurvey:
        """Survey by the files' mtimes; a planned file counts with the mtime that it had when it was planned."""
        return self._window(interval).survey(held)

    def plan_interval(self, interval: Interval, held: HeldRanges) -> tuple[Offset | None, Offset | None]:
        """Append an entry of this lane to the source log, or use the entry that is there."""
        self._seen.refresh()
        self._seen.save()
        while True:
            window = self._window(interval)
            own = window.own
            if own is not None:
                return offset_of(own - 1), offset_of(own)
            if not window.unread:
                return offset_of(window.latest), offset_of(window.latest)
            self._candidates.check_readable(window.unread)
            self._log.add(window.latest + 1, window.unread, lane=self._lane)

    def taken_by(self) -> set[str]:
        """Reads the whole source log."""
        return {file.lane for file in self._log.files(self._log.names().latest)} - {LIVE}

    def _window(self, interval: Interval) -> FileWindow:
        # No offset tells how far the log must reach: without the listing, a lost entry would hide the entries after it,
        # and their files would be planned again.
        self._seen.refresh()
        self._seen.refresh_by_listing()
        self._check_nothing_forgotten()
        latest = self._seen.latest
        return FileWindow(
            interval,
            lane=self._lane,
            latest=latest,
            planned=self._log.files(latest),
            found=self._candidates.listed(self._seen.unseen),
            settled=self._candidates.settled(),
        )

    def _range(self, start: int, end: int) -> list[PlannedFile]:
        return [file for file in self._log.range(start, end) if file.lane == self._lane]

    def _usable(self, planned: list[PlannedFile]) -> list[Located]:
        cleaned = self._cleaned()
        try:
            look = self._place.looks([file.path for file in planned if file.log_id not in cleaned.done])
        except SourceError as error:
            raise self._error(str(error)) from error
        return usable(
            (self._locate(file, cleaned, look) for file in planned),
            source=self._name,
            base=self._listing.base,
            on_missing=self._source.on_missing,
            on_changed=self._source.on_changed,
            cleaned=cleaned.done,
            place=self._place,
        )

    def _cleaned(self) -> Cleaning:
        return self._cleaning.read().knowing(self._taken.read())  # a restored record may lack an archive

    def not_read(self) -> str | None:
        """Describe files that differ from those planned under their names. Looks at each file of the log."""
        self._seen.refresh()
        files, cleaned = self._log.files(self._seen.latest), self._cleaned()
        if self._source.on_changed == "read":
            # The versions that were read are not on record, but for those that clean_source has taken.
            files = (file for file in files if cleaned.has_taken(file.log_id, file.path))
        changed = others(files, cleaned, self._place, self._committed)
        return not_read_by_any(changed) if changed else None

    def forgotten(self) -> str | None:
        """Describe files that, by the note beside them, were taken for batches that this checkpoint does not know."""
        why = self._taken.unknown_to(self._seen.latest, log=self._log.location)
        if why is not None:
            self._seen.refresh_by_listing()
            why = self._taken.unknown_to(self._seen.latest, log=self._log.location)
        return why

    def _check_nothing_forgotten(self) -> None:
        if (why := self.forgotten()) is not None:
            raise self._error(why)

    def _locate(self, file: PlannedFile, cleaned: Cleaning, look: Look) -> Located:
        base, given_up = self._listing.base, cleaned.gives_up(file.log_id, file.path)
        archives = cleaned.archiving(base, self._archive).archives
        taken = cleaned.has_taken(file.log_id, file.path)
        return locate(file, look=look, base=base, archives=archives, given_up=given_up, taken=taken)

    def secrets(self) -> Mapping[str, str]:
        """Return the settings by which Spark reaches the files, where that takes a connection."""
        try:
            return self._place.secrets()
        except SourceError as error:
            raise self._error(str(error)) from error

    def _checked(self, position: Offset | None) -> int:
        """The position's log id, which the log must reach: otherwise files that were read would be planned again."""
        number = log_id(position)
        if number > self._seen.latest:
            self._seen.refresh_by_listing()
        if number > self._seen.latest:
            raise CorruptEntryError(
                f"source {self._name!r}: the offset log is at {position}, but the source log {self._log.location} ends "
                f"at {self._seen.latest}. Restore the missing entries from a backup of the checkpoint."
            )
        return number

    def _hints_of(self, context: SourceContext) -> Hints | None:
        source = self._source
        # Who plans on a draft throws the plan away: the messages would be gone with it.
        if source.notifications is None or self._state.is_draft:
            return None
        return Hints(
            Queue(QueueAddress.parse(source.notifications), connect=context.connect),
            name=self._name,
            top=self._place.top,
            listing=self._listing,
            seen=self._seen,
            source_log=self._log,
            state=self._state,
            selects={name: getattr(source, name) for name in (*_SELECTS, "notifications")},
            full_listing_seconds=source.full_listing_seconds or FULL_LISTING_SECONDS,
            clock_ms=context.clock_ms,
        )

    def _known_names(self) -> KnownNames:
        log, cleaned, committed = self._log, self._cleaned(), self._committed
        return KnownNames(log, cleaned, self._place, seen=self._seen, source=self._source, committed=committed)

    def _bound(self) -> int | None:
        """The last log id of a bounded source; None if it is not bounded, or not pinned yet."""
        if not self._source.bounded:
            return None
        data = self._state.get(_BOUND)
        return None if data is None else log_id(data.decode())

    def _pin_bound(self) -> int | None:
        """Append all files that are there now to the log, entry by entry, then pin the last log id. None if there are
        no files.

        Without the pin, a later call uses the entries of a call that died and adds the files that are there by then;
        two simultaneous calls share entries. The first pin holds.
        """
        for batch in self._appender.limits().cut(self._candidates.eligible()):
            self._candidates.check_readable(batch)
            if not self._log.add(self._seen.latest + 1, batch):
                self._seen.refresh()
                return self._pin_bound()
            self._seen.refresh()
        if self._log.next_of(self._lane, NOTHING, self._seen.latest) is None:
            return None
        self._state.put_if_absent(_BOUND, str(offset_of(self._seen.latest)).encode())
        return self._bound()

    def _error(self, text: str) -> SourceError:
        return SourceError(f"source {self._name!r}: {text}")


def _left_out(planned: list[PlannedFile], files: list[Located]) -> list[str]:
    there = {one.planned.path for one in files}
    return [file.path for file in planned if file.path not in there]
