"""Sinks that a checkpoint has on record, opened: those of its definitions, and that of the run that planned last."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.exceptions import CheckpointError, CorruptEntryError, DefinitionError, MaintenanceError
from airflow_provider_microbatch.execution.ran_last import ran_last
from airflow_provider_microbatch.sinks import OpenSink, Sink, SinkContext

_IN_FORCE = "in force"  # in place of a definition's name, which has no blanks


class SinksOnRecord:
    """Those, by the names of their definitions. The sink of the run that planned last is among them also where that run
    made no batch, so that no definition has it.

    :param checkpoint: the checkpoint that has them.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @property
    def usable(self) -> Mapping[str, OpenSink]:
        """Those that can be used from here, that of now first."""
        return self._loaded[0]

    @property
    def unusable(self) -> Mapping[str, str]:
        """Of the others the reasons, in words."""
        return self._loaded[1]

    @property
    def now(self) -> OpenSink | None:
        """The pipeline's sink of now; None if nobody knows it, or it cannot be used from here."""
        return self.usable.get(self._name_of_now or "")

    @cached_property
    def in_force(self) -> str | None:
        """The name of the sink in force; None if no run has said one, or nobody can read which: check tells that."""
        if self._in_force is None:
            return None
        return next((name for name in self._names if self._form(name) == self._in_force), _IN_FORCE)

    @cached_property
    def newest(self) -> Attempt | None:
        """See :func:`ran_last`."""
        return ran_last(self._checkpoint)

    def named(self, definitions: Iterable[str | None]) -> list[OpenSink]:
        """The sinks of these that are on record.

        :raises MaintenanceError: if one of them cannot be used from here.
        """
        names = dict.fromkeys(filter(None, definitions))
        self.check(self.unusable.keys() & names.keys())
        return [self.usable[name] for name in names if name in self.usable]

    def check(self, unusable: Collection[str]) -> None:
        """Raise :class:`MaintenanceError` if there is any of these."""
        if unusable:
            told = " ".join(self.unusable[name] for name in sorted(unusable))
            raise MaintenanceError(
                f"{told} What is in its table decides here. Make it usable as said, or run the command where its "
                "pipeline ran: with the packages that were installed there. If it is none of yours, look who wrote it, "
                "and remove the file."
            )

    @property
    def _name_of_now(self) -> str | None:
        if self.in_force is not None:
            return self.in_force
        return None if self.newest is None else self.newest.definition

    @cached_property
    def _names(self) -> list[str]:
        return self._checkpoint.definitions.names()

    @cached_property
    def _in_force(self) -> Mapping[str, Any] | None:
        with suppress(CorruptEntryError):
            said = self._checkpoint.sinks_in_force.get()
            return None if said is None else said[-1]
        return None

    @cached_property
    def _loaded(self) -> tuple[dict[str, OpenSink], dict[str, str]]:
        found: dict[str, OpenSink] = {}
        refused: dict[str, str] = {}
        for name in sorted({*self._names, *filter(None, [self.in_force])}, key=self._place):
            try:
                form = self._in_force if name == _IN_FORCE else self._checkpoint.definitions.sink(name)
                if form is not None:
                    found[name] = Sink.from_dict(form).open(SinkContext())
            except (DefinitionError, CheckpointError) as error:
                refused[name] = f"The sink of {self._where(name)} cannot be used from here: {error}"
        return found, refused

    def _place(self, name: str) -> tuple[bool, str]:
        return name != self._name_of_now, name

    def _form(self, name: str) -> Mapping[str, Any] | None:
        with suppress(DefinitionError, CheckpointError):  # whoever needs it is told that
            return self._checkpoint.definitions.sink(name)
        return None

    def _where(self, name: str) -> str:
        return (
            self._checkpoint.sinks_in_force.where() if name == _IN_FORCE else self._checkpoint.definitions.where(name)
        )
