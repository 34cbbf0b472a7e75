"""Where a Delta table lies: how its log is opened, and how its files are read and written."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from airflow_provider_microbatch.sinks.placed.data_files import DataFiles


class Home(DataFiles, Protocol):
    """The place of a table. All paths are relative to the table's folder."""

    @property
    def where(self) -> str:
        """A name for the table, for people."""

    @property
    def uri(self) -> str:
        """The table's address, as delta-rs takes it."""

    def in_python(self) -> str:
        """An expression of Python that opens the table with delta-rs, for people. It names no secret."""

    def options(self) -> dict[str, str]:
        """Options by which delta-rs reaches the table. They may hold secrets, and stay in memory."""

    def has_log(self) -> bool:
        """Whether there may be a log; if False, there is no table."""

    def told(self, error: Exception) -> str:
        """An error of delta-rs, for people: without secrets, and with what to do where that is known."""

    def sync_log(self, *, since_ns: int) -> None:
        """Bring the log's entries that were written since ``since_ns`` to disk, so that they survive a power cut."""

    def here(self, paths: Sequence[str]) -> AbstractContextManager[Sequence[Path]]:
        """Data files as files of this machine, in the same order, as long as the context lasts.

        :raises FileNotFoundError: if one is gone.
        """
