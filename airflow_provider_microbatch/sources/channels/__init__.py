"""Sources of channels: logs without seek that come and go, of which only reading tells where a batch ends.

A shard of Kinesis is a channel, and so is one of Tablestore's tunnels. A system brings a :class:`Server`, which is
asked where batches are planned, a reader in :mod:`airflow_provider_microbatch.runtime.channels`' words, and a
definition that extends :class:`ChannelSource`. Everything else is here: the graph of parents and children, late ends,
and what is on record.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar, Protocol

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.channels import FAIL, RECORD_GAP, At
from airflow_provider_microbatch.sources import OpenSource, Source, SourceContext


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A channel as the server lists it.

    :param parents: ids of those whose rows come before its own.
    :param closed: no more rows come into it.
    """

    id: str
    parents: tuple[str, ...] = ()
    closed: bool = False


@dataclass(frozen=True, kw_only=True)
class Look:
    """What there is behind a place of a channel.

    :param is_new: a batch would find rows, or that the channel has ended.
    :param behind_ms: so long ago what comes next there came, milliseconds; None if the server does not tell.
    """

    is_new: bool
    behind_ms: int | None = None


class Server(Protocol):
    """What planning asks of a system. Nothing but :meth:`push` changes anything there.

    All may raise :class:`~airflow_provider_microbatch.exceptions.SourceError`.
    """

    @property
    def splits(self) -> str:
        """What people call its channels: ``shards``."""

    @property
    def keeps_ms(self) -> int:
        """A channel that has ended is gone from the server so long after, milliseconds, whatever is set there."""

    def retention_ms(self) -> int:
        """So long the server keeps a row as it is set now, milliseconds."""

    def channels(self, *, max_age: float) -> Mapping[str, Channel]:
        """All that there are, by id: a whole listing, or an error.

        :param max_age: so old, seconds, it may be.
        """

    def beginning(self, channels: Mapping[str, Channel]) -> Mapping[str, At] | None:
        """Where the first batch begins in each channel, as of now; None: at the first row of each."""

    def look(self, channel: str, at: At) -> Look:
        """What there is behind a place."""

    def why_gone(self, channel: str, end: At) -> str | None:
        """Why what lies before a place cannot be read any more; None if it can, for all that one request shows."""

    def why_no_place(self, at: At) -> str | None:
        """Why a text that a person, or a checkpoint, gives can be no place of this system; None if it can."""

    def client(self) -> tuple[str, Mapping[str, Any]]:
        """``module:function`` of the runtime that makes its :class:`~.runtime.channels.Channels`, and its arguments."""

    def secrets(self) -> Mapping[str, str]:
        """What that needs beside them, by names."""

    def push(self, position: Mapping[str, At]) -> None:
        """Tell the server how far batches are committed, if it keeps that. Idempotent, and never back."""

    def pushed(self) -> Mapping[str, str | None] | None:
        """What it keeps, by channel; None if it keeps nothing, and the logs here are the record."""


@dataclass(frozen=True)
class ChannelSource(Source):
    """What is common to sources of channels.

    :param max_records: at most so many rows of each channel are in a batch.
    :param idle_seconds: a channel in which nothing has come for so long ends there for the batch.
    :param discover_seconds: how old a listing of channels may be that a sensor looks at.
    :param on_data_loss: what becomes of rows that are gone before they were read: ``fail``, with an error that names
        the channel; or ``record_gap``: go on without them, which the batch then says.
    :param max_partitions: into so many partitions of Spark the channels are put at most; None: each has its own.
    :param ends_dir: a folder that Spark's driver and all executors see as a file system, for where attempts come to.
        None: in the checkpoint, if that is such a folder.
    :param timeout: seconds that a request may take, with all retries.
    """

    _: KW_ONLY
    max_records: int = 10_000
    idle_seconds: float = 1.0
    discover_seconds: float = 10.0
    on_data_loss: str = FAIL
    max_partitions: int | None = None
    ends_dir: str | None = None
    timeout: float = 60.0

    schema: ClassVar[str]
    """The columns, as DDL; each system has its own."""

    def __post_init__(self) -> None:
        for name in ("max_records", "max_partitions"):
            value = getattr(self, name)
            if not (value is None and name == "max_partitions") and (type(value) is not int or value < 1):
                raise self._wrong(f"{name} must be a whole number above 0; not {value!r}")
        for name, least, most in (
            ("idle_seconds", 0, 3600),
            ("discover_seconds", 0, 86_400),
            ("timeout", 0.1, 3600),
        ):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
                raise self._wrong(f"{name} must be seconds, from {least} to {most}; not {value!r}")
        if self.on_data_loss not in (FAIL, RECORD_GAP):
            raise self._wrong(f"on_data_loss must be {FAIL!r} or {RECORD_GAP!r}; not {self.on_data_loss!r}")
        folder = self.ends_dir
        if folder is not None and not (isinstance(folder, str) and PurePosixPath(folder).is_absolute()):
            raise self._wrong(f"ends_dir must be an absolute path of a folder; not {folder!r}")

    @abstractmethod
    def server(self, context: SourceContext) -> Server:
        """The system, as this definition names it. Touches nothing yet."""

    @property
    def refuses_limits(self) -> str | None:
        """Where a batch ends is known after it was read."""
        return "a batch of channels ends where reading comes to: give it max_records, which is for each channel"

    def open(self, context: SourceContext) -> OpenSource:
        """The source in the surroundings of one checkpoint."""
        from airflow_provider_microbatch.sources.channels.open import OpenChannels

        return OpenChannels(self, context)

    def _wrong(self, text: str) -> DefinitionError:
        return DefinitionError(f"{type(self).__name__}: {text.removesuffix('.')}.")
