"""What a commit to a Delta table is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_microbatch.sinks import Manifest


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a commit does to the table's rows, besides saying which output the batch has.

    :param actions: additions and removals of files, as delta-rs takes them.
    :param transactions: further application transactions.
    :param rows: how many of the rows that it takes out were the batch's.
    """

    actions: Sequence[Any]
    transactions: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Output of an attempt that can be committed.

    :param number: number of its manifest.
    :param below: folder of its files, relative to the table's folder.
    :param schema: the columns that the runtime has recorded; None if no source had a frame.
    """

    manifest: Manifest
    number: int
    below: str
    schema: Mapping[str, Any] | None
