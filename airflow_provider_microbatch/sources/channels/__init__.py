"""Sources of channels: logs without seek that appear and disappear, where only reading tells where a batch ends.

A shard of Kinesis is a channel, and so is a channel of a Tablestore tunnel. A system provides a :class:`Server`, which
the planner asks, a reader as :mod:`airflow_provider_microbatch.runtime.channels` defines it, and a definition that
extends :class:`ChannelSource`. Everything else is in this package: the graph of parents and children, late ends, and
the records.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar, Protocol

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.channels import FAIL, RECORD_GAP, At
from airflow_provider_microbatch.sources import OpenSource, Source, SourceContext


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A channel as the server lists it.

    :param parents: ids of the channels whose rows come before its own.
    :param closed: no more rows come into it.
    """

    id: str
    parents: tuple[str, ...] = ()
    closed: bool = False


@dataclass(frozen=True, kw_only=True)
class Look:
    """The state of a channel behind a place.

    :param is_new: whether a batch would find rows, or the end of the channel.
    :param behind_ms: how long ago the next row came, milliseconds; None if the server does not tell.
    """

    is_new: bool
    behind_ms: int | None = None


class Server(Protocol):
    """The questions of planning to a system. Only :meth:`push` changes anything there.

    All methods may raise :class:`~airflow_provider_microbatch.exceptions.SourceError`.
    """

    @property
    def splits(self) -> str:
        """The name that users give to its channels: ``shards``."""

    @property
    def keeps_ms(self) -> int:
        """The time after which an ended channel is gone from the server, milliseconds, whatever its settings are."""

    @property
    def has_origins(self) -> bool:
        """Whether :meth:`origin` alone tells the place of a channel's first row; otherwise no place stands for it."""

    def origin(self, channel: str) -> tuple[str, bool]:
        """The place of the first row of a channel of which nothing was pushed yet; and whether something was pushed, so
        that rows may lie before the place."""

    def retention_ms(self) -> int:
        """The time for which the server keeps a row by its present settings, milliseconds."""

    def channels(self, *, max_age: float) -> Mapping[str, Channel]:
        """All channels, by id: a complete listing, or an error.

        :param max_age: the largest age of the listing, seconds.
        """

    def identity(self) -> str:
        """The text that tells what was listed last from everything that had, or will have, the same name. Lists if
        nothing was."""

    def beginning(self, channels: Mapping[str, Channel]) -> Mapping[str, At] | None:
        """The place where the first batch begins in each channel, as of now; None: at the first row of each."""

    def look(self, channel: str, at: At) -> Look:
        """The state of a channel behind a place."""

    def why_gone(self, channel: str, end: At) -> str | None:
        """The reason why rows before a place cannot be read any more; None if they can, as far as one request shows."""

    def why_no_place(self, at: At) -> str | None:
        """The reason why a text from a user, or from a checkpoint, cannot be a place in this system; None if it can."""

    def client(self) -> tuple[str, Mapping[str, Any]]:
        """``module:function`` of the runtime that makes :class:`~.runtime.channels.Channels`, and its arguments."""

    def secrets(self) -> Mapping[str, str]:
        """The secrets that the client needs in addition to its arguments, by name."""

    def push(self, position: Mapping[str, At]) -> None:
        """Tell the server how far batches are committed, if it keeps that. Idempotent. What the server shows may move
        back, after a rewind or by a task that was slow to say it, but for the end of a channel."""

    def lacks(self, position: Mapping[str, At]) -> Collection[str]:
        """The channels for which the server shows something else than that it is read up to the position; none if it
        keeps no places, and the checkpoint's logs are the record."""


@dataclass(frozen=True)
class ChannelSource(Source):
    """The common part of sources of channels.

    :param max_records: the largest number of rows of each channel in a batch.
    :param idle_seconds: a channel without new rows for this time ends there for the batch.
    :param discover_seconds: the largest age of the listing of channels that a sensor uses.
    :param on_data_loss: reaction to rows that are gone before they were read: ``fail``, with an error that names the
        channel; or ``record_gap``: go on without them, which the batch then reports.
    :param max_partitions: the largest number of Spark partitions for the channels; None: one for each channel.
    :param ends_dir: a folder that Spark's driver and all executors see as a file system, for the ends that attempts
        reach. None: in the checkpoint, if the checkpoint is such a folder.
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
        """Return the system that this definition names. Touches nothing yet."""

    @property
    def refuses_limits(self) -> str | None:
        """The end of a batch is known only after reading."""
        return "a batch of channels ends where reading comes to: give it max_records, which is for each channel"

    def open(self, context: SourceContext) -> OpenSource:
        """Return the source opened for one checkpoint."""
        from airflow_provider_microbatch.sources.channels.open import OpenChannels

        return OpenChannels(self, context)

    def _wrong(self, text: str) -> DefinitionError:
        return DefinitionError(f"{type(self).__name__}: {text.removesuffix('.')}.")
