"""Write marks from processes that must not wait: the scheduler in its loop, and the API server in its requests."""

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
"""Most marks that may wait. When a store hangs, further marks are lost, and memory does not grow without end."""

Write = Callable[[str, Mark], None]


def write_mark(location: str, mark: Mark) -> None:
    """Put the mark into the checkpoint, if an attempt there is unfinished: an attempt that has ended needs no reason,
    and a folder that is not mounted on this host is not made."""
    checkpoint = Checkpoint(open_store(location))
    if checkpoint.leases.unfinished():
        checkpoint.marks.put(mark)


class Marking:
    """A queue, and a daemon thread that empties it, started by the first mark. A mark is a hint: the janitor makes good
    for marks that are lost with the process, as it works without marks too.

    :param write: what the thread does with each mark.
    """

    def __init__(self, write: Write = write_mark) -> None:
        self._write = write
        self._pid = 0
        self._waiting: queue.Queue[tuple[str, Mark]] = queue.Queue(CAPACITY)

    def put(self, location: str, mark: Mark) -> None:
        """Have the mark written; returns at once and never raises."""
        if self._pid != os.getpid():
            # A fork takes no threads along, and one of the threads may have held a lock of the queue.
            self._pid, self._waiting = os.getpid(), queue.Queue(CAPACITY)
            threading.Thread(target=self._drain, args=(self._waiting,), name="microbatch marks", daemon=True).start()
        try:
            self._waiting.put_nowait((location, mark))
        except queue.Full:
            log.debug("no room for %s", mark)

    def wait(self) -> None:
        """Wait until all marks that were put in this process are written."""
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
"""The queue of this process."""
