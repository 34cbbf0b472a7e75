"""Chooses whether a plan lists, or looks at what notifications name alone.

* A plan receives messages before it looks at anything, and deletes a message only when each file that it names is in
  the source log, or is none to be planned. One that fails before that gives the messages back; one that dies has them
  come again.
* A sensor receives nothing: it asks how many messages there are, and lists where there are some. So it fires for what a
  plan finds.
* A plan lists where a full listing is due, and where messages came by which nothing is found: a sensor may have found a
  file of which no message came. Also where more messages wait than one plan receives, since the oldest files go first.
* No error comes out of what a message says: a listing tells what is really there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_microbatch.exceptions import DefinitionError, SourceError
from airflow_provider_microbatch.sources.file.listing import Listing
from airflow_provider_microbatch.sources.file.log import NOTHING, SourceLog
from airflow_provider_microbatch.sources.file.notifications.events import created
from airflow_provider_microbatch.sources.file.notifications.queue import Message, Queue, QueueAwayError
from airflow_provider_microbatch.sources.file.sealed import SealedRecords, is_due
from airflow_provider_microbatch.sources.file.seen import SeenFiles
from airflow_provider_microbatch.stores import Store

log = logging.getLogger(__name__)

NOTIFIED = "notified"
"""Folder of the records in the source's state."""

_MOST = 1_000
"""The most messages that a plan receives. To look at more objects takes more requests than to list them."""

_LONGEST = 1_024
"""Bytes of the longest key that S3 has. https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html"""


@dataclass(frozen=True, kw_only=True)
class Record:
    """:param full_ms: time of the last listing of all files, milliseconds since the epoch; 0 if it left files for
    later: then the next plan lists, too.
    """

    full_ms: int

    def __post_init__(self) -> None:
        if type(self.full_ms) is not int:
            raise TypeError(f"full_ms is {self.full_ms!r:.40}")


@dataclass(frozen=True, kw_only=True)
class _Listed:
    """A listing in vain by a sensor of this process.

    :param number: of the record that it followed.
    :param latest: the highest log id then. A plan that deletes messages moves one of the two.
    :param waiting: the number of messages that it was for; -1 once that number has changed.
    """

    number: int
    latest: int
    at_ms: int
    waiting: int


_LISTED: dict[str, _Listed] = {}
"""By the state's address. A sensor writes nothing and deletes no message, and each of its questions opens the source
anew: without this, messages of planned files would have each question list. Forgetting an entry costs a listing."""


class Hints:
    """What the queue of a source tells its plans and sensors.

    :param queue: the queue.
    :param name: name of the source in the pipeline.
    :param top: the beginning of all paths of the source's bucket.
    :param listing: which files the source takes.
    :param seen: what the source log has.
    :param source_log: the planned files.
    :param state: the source's own state.
    :param selects: the arguments of the source that decide which files it reads, as JSON values.
    :param full_listing_seconds: seconds after which all files are listed again.
    :param clock_ms: the time, milliseconds since the epoch.
    """

    def __init__(
        self,
        queue: Queue,
        *,
        name: str,
        top: str,
        listing: Listing,
        seen: SeenFiles,
        source_log: SourceLog,
        state: Store,
        selects: Mapping[str, Any],
        full_listing_seconds: float,
        clock_ms: Callable[[], int],
    ) -> None:
        self._queue = queue
        self._name = name
        self._top = top
        self._listing = listing
        self._seen = seen
        self._location = state.location
        self._records = SealedRecords(Record, NOTIFIED, source_log, state, selects=selects)
        self._full_ms = int(full_listing_seconds * 1000)
        self._clock_ms = clock_ms
        self._held: dict[Message, frozenset[str]] = {}

    def starts(self) -> Iterator[str | None]:
        """Yield where a sensor starts its listing: at the first path, or nowhere. Takes and writes nothing."""
        (number, record), latest = self._records.read(), self._seen.latest
        listed = _LISTED.get(self._location)
        if listed is not None and (listed.number, listed.latest) != (number, latest):
            listed = None
        must_list = self._is_due(None if record is None else record.full_ms)
        must_list = must_list and self._is_due(None if listed is None else listed.at_ms)
        waiting = self._told(self._queue.waiting)
        if listed is not None and waiting is not None and waiting != listed.waiting:
            # One may have gone and another come: from here on the number that was listed for tells nothing.
            _LISTED[self._location] = listed = replace(listed, waiting=-1)
        if not must_list and (waiting == 0 or (listed is not None and listed.waiting == waiting)):
            return
        now_ms = self._clock_ms()
        yield None
        if waiting is not None and latest != NOTHING:  # with an empty log no plan moves one of the two
            _LISTED[self._location] = _Listed(number=number, latest=latest, at_ms=now_ms, waiting=waiting)

    def named(self) -> list[str] | None:
        """Receive messages, and return the paths of the files that they name; None: list all files."""
        _, record = self._records.read()
        came = self._told(lambda: self._queue.receive(_MOST + 1))
        is_unclear = self._hold(came or [])
        must_list = is_unclear or self._is_due(None if record is None else record.full_ms)
        if came is None or len(came) > _MOST or must_list:
            return None
        if not came and not self._held:
            return []
        return sorted(frozenset().union(*self._held.values())) or None

    def over(self, *, left: Collection[str], latest: int, listed_ms: int | None, is_whole: bool) -> None:
        """A plan is over: what it has found is in the log up to ``latest``, except what is left for later.

        :param left: the named files that are left for later.
        :param listed_ms: when its listing of all files began, milliseconds since the epoch; None if it did not list.
        :param is_whole: whether it has left nothing of what it has found.
        """
        if listed_ms is not None:
            # A file that the listing did not show, though the message came before the listing began, is looked at.
            left = {*left, *self._seen.unseen(sorted(frozenset().union(*self._held.values())))}
        is_left = {message: not paths.isdisjoint(left) for message, paths in self._held.items()}
        self._queue.delete([message for message, is_kept in is_left.items() if not is_kept])
        self._queue.give_back([message for message, is_kept in is_left.items() if is_kept])
        self._held.clear()
        if listed_ms is not None:
            number, _ = self._records.read()
            self._records.write(number + 1, Record(full_ms=listed_ms if is_whole else 0), latest=latest)

    def give_back(self) -> None:
        """A plan has appended nothing, since it failed or another one came first: who plans next has its messages."""
        self._queue.give_back(list(self._held))
        self._held.clear()

    def _hold(self, messages: list[Message]) -> bool:
        """Note what messages name. Returns whether a listing has to look at what one names: at what only a table has,
        which it refuses, and at a file that the client cannot be asked for by its name."""
        strange, is_unclear = 0, False
        for message in messages:
            keys = created(message.body, self._top.removeprefix("s3a://").rstrip("/"))
            if keys is None:
                strange += 1
                continue
            paths = {f"{self._top}{key}": _is_askable(key) for key in keys}
            is_unclear = is_unclear or any(map(self._listing.tells_table, paths))
            selected = frozenset(filter(self._listing.selects, paths))
            self._held[message] = frozenset(path for path in selected if paths[path])
            is_unclear = is_unclear or selected != self._held[message]
        if strange:
            log.warning(
                "source %r: %s has %s message(s) that are no notifications of %s. They are left there. Let the queue "
                "be this source's own: whoever takes its messages, or sends others, costs listings.",
                self._name, self._queue.address, strange, self._top,
            )  # fmt: skip
        return is_unclear

    def _told(self, ask: Callable[[], Any]) -> Any:
        """The queue's answer; None if there is none for now."""
        try:
            return ask()
        except QueueAwayError as error:
            log.warning(
                "source %r: %s does not answer, so all files are listed: %s", self._name, self._queue.address, error
            )
            return None
        except (SourceError, DefinitionError) as error:
            raise SourceError(f"source {self._name!r}: {error}") from error

    def _is_due(self, last_ms: int | None) -> bool:
        # 0: files were left, and however rarely all is to be listed, nothing else names them.
        return not last_ms or is_due(last_ms, now_ms=self._clock_ms(), every_ms=self._full_ms)


def _is_askable(key: str) -> bool:
    """Whether the client, and the service, can be asked for a key; a listing tells of those that they cannot."""
    return (
        len(key.encode(errors="surrogatepass")) <= _LONGEST
        and not any(part in ("", ".", "..") for part in key.split("/"))
        and not any(ord(sign) < 0x20 or ord(sign) == 0x7F or 0xD800 <= ord(sign) <= 0xDFFF for sign in key)
    )
