"""What a rewind takes out of a table that the pipeline writes to no more: it does not come back there.

One rule for all lanes: a table is written to if each sink in force has it, at whatever address it was then. Those are
what runs of the pipeline have said last (:mod:`~airflow_provider_microbatch.checkpoint.sinks_in_force`). So whoever is
refused has one way on that always leads out: name the table, and let the pipeline run once. A sensor alone tells
nothing.

Dead letters are run again by the pipeline on record, as the newest attempt had it: for their lane that one counts,
whatever runs without a batch have said since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LETTERS as LETTERS_LANE
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import CorruptEntryError, DefinitionError, MaintenanceError
from airflow_provider_microbatch.execution.published_together import published_beside
from airflow_provider_microbatch.execution.recorded_sinks import (
    RecordedTable,
    forms_in,
    is_one_of,
    places_of,
    tables_in,
)
from airflow_provider_microbatch.registry import of_today
from airflow_provider_microbatch.sinks import OpenSink, Sink, SinkContext
from airflow_provider_microbatch.sinks.dead_letters import LETTERS
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.upkeep.commands.site import Published, Recorded

_RUN_ONCE = (
    "let the pipeline run once (a new run, no clear: it tells what it names also where it is refused, or finds nothing "
    "new; behind a sensor that waits for new data it does once that is marked as succeeded)"
)
_MAKE_A_BATCH = "let the pipeline make one more batch (dead letters are run again as its newest batch was)"


class InForce:
    """The tables that the pipeline writes to by now, as a rewind of a lane asks for them.

    :param lane: the lane that is rewound; counts where no run of this version has told anything yet.
    :raises MaintenanceError: if the record cannot be read: whatever it says, something could be lost.
    """

    def __init__(self, checkpoint: Checkpoint, recorded: Recorded, lane: str) -> None:
        self._checkpoint, self._recorded = checkpoint, recorded
        self._has = dict[str, bool]()
        self._until = _MAKE_A_BATCH if lane == LETTERS_LANE else _RUN_ONCE
        try:
            self._forms = _in_force(checkpoint, recorded, lane)
        except (CorruptEntryError, DefinitionError) as error:
            raise MaintenanceError(
                f"To which tables the pipeline writes by now nobody can tell: {error} Nothing was done. First "
                f"{_RUN_ONCE}; then type this again."
            ) from error

    def has(self, table: OpenSink) -> bool:
        """Whether what is taken out of the table comes back there. True where no pipeline is on record: it may write to
        any table."""
        place = str(table.definition.to_dict())
        if place not in self._has:
            self._has[place] = all(self._is_in(form, table) for form in self._forms)
        return self._has[place]

    def _is_in(self, form: Mapping[str, Any], table: OpenSink) -> bool:
        return is_one_of(table, places_of(tables_in(form, beside=table)), self._checkpoint.tables)

    def beside(self, key: BatchKey) -> list[RecordedTable]:
        """The tables that are none of these and got the batch together with one of these, whether or not they have it
        still.

        :raises MaintenanceError: if none of the tables of one of the sinks can be used from here.
        :raises CorruptEntryError: if an entry cannot be read.
        """
        if not self._went_to_several:
            return []
        return [one for sink in self._sinks for one in published_beside(self._checkpoint, sink, key)]

    @cached_property
    def _went_to_several(self) -> bool:
        """Whether any pipeline on record has several tables, or nobody can read which: then each batch is looked at."""
        try:
            forms = [_form(self._checkpoint, name) for name in self._checkpoint.definitions.names()]
        except CorruptEntryError:
            return True
        return any(len(forms_in(form)) > 1 for form in forms if form is not None)

    @cached_property
    def _sinks(self) -> Sequence[OpenSink]:
        return [_opened(form) for form in self._forms]

    def away(self, found: Sequence[Published]) -> list[str]:
        """The tables, of those that have a batch, into which its next run may not put it."""
        return [one.sink.location() for one in found if not self.has(one.sink)]

    def check_put_back(self, key: BatchKey, found: Sequence[Published]) -> None:
        """Check that a batch that went to several tables together is not taken out of one that the pipeline names no
        more: its next run puts it back into the others alone. What is in such a table alone moves to that of now.

        :param found: the batch, in each table that has it.
        :raises MaintenanceError: if it would be.
        """
        letters = [sink.definition.dead_letters for sink in self._recorded.usable()]
        # Whatever becomes of a batch's dead letters, its rows come back; and what nobody can take out of a table stays.
        tables = [
            one
            for one in found
            if one.sink.definition.can_withdraw
            and not any(one.sink.definition.is_same_place(other) for other in letters if other)
        ]
        away = self.away(tables)
        # Also where such a table has lost it: the attempts that are put away are all that tells that it is due there.
        beside = [_where(one) for one in self.beside(key) if one.place is None or one.place.can_withdraw]
        if beside or 0 < len(away) < len(tables):
            where = " and ".join(dict.fromkeys(away or beside))
            is_in, taken = ("is in", "taken out there") if away else ("is to be in", "made again without it")
            raise MaintenanceError(
                f"batch {key} {is_in} {where}, and was published together with another table's, which the pipeline "
                f"writes to as its last run has it. It does not write to {where}: {taken}, the batch would not "
                f"come back. Nothing was done. Name all these tables, {self._until}, and type this again; or, if the "
                "batch may be lost there, with --allow-skip."
            )


def _where(table: RecordedTable) -> str:
    return "a table of a class that is not known here" if table.place is None else table.place.location()


def _in_force(checkpoint: Checkpoint, recorded: Recorded, lane: str) -> Sequence[Mapping[str, Any]]:
    if lane == LETTERS_LANE:
        sink = recorded.arguments().get("sink")
        return [] if sink is None else [of_today(sink)]
    return checkpoint.sinks_in_force.get() or _of_older_version(checkpoint, recorded, lane)


def _of_older_version(checkpoint: Checkpoint, recorded: Recorded, lane: str) -> list[Mapping[str, Any]]:
    """What runs of an older version tell: of the lane itself, of the live one, and of the one that ran last by the
    clocks of workers, the plan that was refused last, or the newest attempt. Each has to have the table."""
    newest, names = recorded.newest, list[str | None]()
    for one in dict.fromkeys((lane, LIVE, lane if newest is None else newest.key.lane)):
        refused = recorded.refused(one)
        names.append(recorded.ran_last(one) if refused is None else refused.definition)
    told = [name for name in dict.fromkeys(names) if name is not None] or checkpoint.definitions.names()
    return [form for name in told if (form := _form(checkpoint, name)) is not None]


def _form(checkpoint: Checkpoint, name: str) -> Mapping[str, Any] | None:
    with suppress(DefinitionError):  # of a stranger
        return checkpoint.definitions.sink(name)
    return None


def _opened(form: Mapping[str, Any]) -> OpenSink:
    """The sink, or those of its tables together that can be used from here.

    :raises MaintenanceError: if none can be.
    """
    try:
        return Sink.from_dict(form).open(SinkContext())
    except DefinitionError as error:
        usable = dict[str, Sink]()
        for name, one in forms_in(form).items():
            with suppress(DefinitionError):
                usable[name] = Sink.from_dict(one)
        usable.pop(LETTERS, None)
        if not usable:
            raise MaintenanceError(
                f"what the pipeline writes to by now cannot be used from here: {error} So nobody can tell what comes "
                "back. Nothing was done. Run the command where the pipeline runs, with the packages installed there."
            ) from error
        only = next(iter(usable.values()))
        return (Sinks(usable) if len(usable) > 1 else only).open(SinkContext())
