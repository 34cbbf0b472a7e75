"""Rows that the tables of a batch did not get, as the batch's result tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.runtime.checks import DEAD_LETTER


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Rows of a batch that something refused.

    :param what: the expectation that refused them; or that a source's records do not parse; or why the table could not
        take them.
    :param sink: the sink that the rows were meant for; empty for a pipeline's only sink.
    :param action: what became of the rows: ``drop`` or ``dead_letter``.
    :param rows: how many.
    """

    what: str
    sink: str
    action: str
    rows: int

    def __str__(self) -> str:
        sink = f" for sink {self.sink!r}" if self.sink else ""
        return f"{self.what}{sink}: {self.rows:,} {'dead letters' if self.action == DEAD_LETTER else 'dropped'}"


def refused_in(result: Mapping[str, Any]) -> list[Refused]:
    """All refused rows that a result tells of. A value that is not as the runtime writes it is passed over: user code
    may have written it.

    :param result: the runtime's, as it stands in a manifest and in ``progress`` of a commit entry.
    """
    unparsed, told = result.get("numUnparsedRows"), result.get("refused")
    found = [
        Refused(what=f"source {name!r} does not parse", sink="", action=DEAD_LETTER, rows=rows)
        for name, rows in (unparsed.items() if isinstance(unparsed, Mapping) else ())
        if type(rows) is int
    ]
    for one in told if isinstance(told, list) else ():
        values = one if isinstance(one, Mapping) else {}
        what, sink, action, rows = (values.get(name) for name in ("expectation", "sink", "action", "rows"))
        if isinstance(what, str) and isinstance(sink, str) and isinstance(action, str) and type(rows) is int:
            found.append(Refused(what=what, sink=sink, action=action, rows=rows))
    return found
