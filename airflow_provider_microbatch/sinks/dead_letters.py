"""A sink beside those of a pipeline, for the rows that the others do not get. It is staged with the other sinks, and
published after them: a batch is in when its tables and its dead letters are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_microbatch.definition import is_read_back
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.sinks import OpenSink, Sink, SinkContext
from airflow_provider_microbatch.sinks.several import OpenSinks, Sinks, check_sinks

LETTERS = "dead_letters"
"""Name of the stage of the dead letters. A pipeline that has dead letters cannot use it as the name of another sink."""


@dataclass(frozen=True)
class WithDeadLetters(Sinks):
    """The sinks of a pipeline with ``Pipeline(dead_letters=…)``.

    :param sinks: the pipeline's sinks by name, in the order in which they are published (a single sink has the empty
        name), and last, as ``dead_letters``, the sink of the letters.
    :raises DefinitionError: for a value that is no sink, for two sinks of one table, or for a table that cannot have
        letters.
    """

    def __post_init__(self) -> None:
        *tables, last = self.sinks if isinstance(self.sinks, Mapping) and len(self.sinks) > 1 else ("", "")
        if last != LETTERS:
            raise DefinitionError(f"the dead letters are the last of sinks, as {LETTERS!r}.")
        check_sinks(self.sinks, unnamed=tables == [""])
        letters = self.sinks[LETTERS]
        if is_read_back():
            return
        if not letters.keeps_batches:
            raise DefinitionError(
                f"dead_letters={letters.location()!r} is a table that each batch replaces, and with it the letters of "
                "the batches before. Give it a table that keeps its batches, such as a FileSink."
            )

    def open(self, context: SinkContext) -> OpenSink:
        judged, letters = replace(context, rows_are_judged=True), self.dead_letters
        return OpenSinks(
            self, {name: sink.open(context if sink is letters else judged) for name, sink in self.sinks.items()}
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in self.sinks if name not in ("", LETTERS))

    @property
    def dead_letters(self) -> Sink:
        return self.sinks[LETTERS]


def with_letters(sink: Sink, letters: Sink) -> WithDeadLetters:
    """Add a sink for dead letters to the sinks of a pipeline.

    :param sink: the pipeline's only sink, or its several sinks.
    :param letters: the sink of the dead letters.
    """
    tables: Mapping[str, Sink] = sink.sinks if isinstance(sink, Sinks) else {"": sink}
    if LETTERS in tables:
        raise DefinitionError(f"a sink is called {LETTERS!r}, as that of dead_letters=… is. Give it another name.")
    return WithDeadLetters({**tables, LETTERS: letters})


def tables_of(sink: Sink) -> Sequence[str]:
    """Names of the stages that hold the frames a transform returns; the stage of a single sink has the empty name."""
    return sink.names or ("",)
