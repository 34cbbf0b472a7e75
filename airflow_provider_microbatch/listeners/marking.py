"""Marks from processes that must not wait: the scheduler's loop and the API server's requests."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.marks import Mark
from airflow_provider_microbatch.stores.location import open_store

log = logging.getLogger(__name__)

CAPACITY = 1000
"""Marks that may wait. A store that hangs costs marks then, and no memory without end."""

Write = Callable[[str, Mark], None]


def write_mark(location: str, mark: Mark) -> None:
    """Put the mark into the checkpoint, if an attempt there is unfinished: who has ended needs no reason, and a folder
    that is not mounted on this host is not made."""
    checkpoint = Checkpoint(open_store(location))
    if checkpoint.leases.unfinished():
        checkpoint.marks.put(mark)


class Marking:
    """A queue, and a daemon thread that empties it, started by the first mark. A mark is a hint: what is lost with the
    process is made good by the janitor, which needs none.

    :param write: what the thread does with each mark.
    """

    def __init__(self, write: Write = write_mark) -> None:
        self._write = write
        self._pid = 0
        self._waiting: queue.Queue[tuple[str, Mark]] = queue.Queue(CAPACITY)

    def put(self, location: str, mark: Mark) -> None:
        """Have the mark written; returns at once and never raises."""
        if self._pid != os.getpid():
            # A fork takes no threads along, and a lock of the queue may have been held by one of them.
            self._pid, self._waiting = os.getpid(), queue.Queue(CAPACITY)
            threading.Thread(target=self._drain, args=(self._waiting,), name="microbatch marks", daemon=True).start()
        try:
            self._waiting.put_nowait((location, mark))
        except queue.Full:
            log.debug("no room for %s", mark)

    def wait(self) -> None:
        """Until all marks that were put in this process are written."""
        if self._pid == os.getpid():
            self._waiting.join()

    def _drain(self, waiting: queue.Queue[tuple[str, Mark]]) -> None:
        while True:
            location, mark = waiting.get()
            try:
                self._write(location, mark)
            except Exception:
                log.debug("%s cannot be marked with %s", location, mark, exc_info=True)
            finally:
                waiting.task_done()


MARKING = Marking()
"""The one of this process."""
