"""A table to be made or added to, and the stage table that an attempt writes for it. Both are records in memory; a
catalog gives them storage."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity, is_checkpoint_id
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import DefinitionError

APPEND = "append"
"""Continuous: the table is made before batch 0, each batch is appended to it."""
CREATE = "create"
"""``CREATE TABLE AS``."""
CREATE_IF_NOT_EXISTS = "create_if_not_exists"
"""``CREATE TABLE IF NOT EXISTS AS``."""
REPLACE = "replace"
"""``REPLACE TABLE AS``."""
CREATE_OR_REPLACE = "create_or_replace"
"""``CREATE OR REPLACE TABLE AS``."""

MODES = (APPEND, CREATE, CREATE_IF_NOT_EXISTS, REPLACE, CREATE_OR_REPLACE)

_PART = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
"""Single underscores only, because catalogs put two into the names they make. No capitals, because Hive has none."""


@dataclass(frozen=True, kw_only=True)
class Table(Definition):
    """The table that a sink writes, and the statement by which it does so.

    :param name: ``namespace.table``, or ``table`` in the catalog's own root or default namespace.
    :param pipeline: the pipeline that writes the table; part of the owner's mark.
    :param mode: one of ``MODES``.
    :param format: ``parquet``, ``json``, ``csv`` or ``orc``.
    :param partition_by: columns whose values become folders.
    :param options: options of Spark's writer.
    :param schema: the columns, as DDL (``id long, note string``); None takes those of the query.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    name: str
    pipeline: str
    mode: str = APPEND
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str | None = None

    def __post_init__(self) -> None:
        parts = self.name.split(".") if isinstance(self.name, str) else []
        if not 1 <= len(parts) <= 2 or not all(_PART.fullmatch(part) for part in parts):
            raise DefinitionError(
                f"table {self.name!r}: write 'namespace.table' or 'table', in small letters, digits and single "
                "underscores, each part beginning with a letter."
            )
        if self.mode not in MODES:
            raise DefinitionError(f"table {self.name!r}: mode {self.mode!r} is none of {', '.join(MODES)}.")
        if self.schema is not None and (not isinstance(self.schema, str) or not self.schema.strip()):
            raise DefinitionError(f"table {self.name!r}: schema must be DDL such as 'id long', not {self.schema!r}.")
        object.__setattr__(self, "partition_by", tuple(self.partition_by))

    @property
    def namespace(self) -> str | None:
        """The part before the dot."""
        return self.name.rpartition(".")[0] or None

    @property
    def base_name(self) -> str:
        """The part after the dot."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The attempt that made something in a catalog's storage; written as a mark beside it.

    :param pipeline: the pipeline.
    :param key: the batch.
    :param epoch: the attempt.
    :param checkpoint: id of the checkpoint; empty for attempts of versions before identities.
    """

    pipeline: str
    key: BatchKey
    epoch: int
    checkpoint: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The owner as JSON values."""
        told = {"pipeline": self.pipeline, "lane": self.key.lane, "batchId": self.key.id, "epoch": self.epoch}
        return {**told, "checkpoint": self.checkpoint} if self.checkpoint else told

    def may_be_of(self, table: Table, checkpoint: str) -> bool:
        """Whether the owner is an attempt of the table's pipeline and of the checkpoint, as far as the mark tells."""
        return self.pipeline == table.pipeline and self.checkpoint in ("", checkpoint)

    def to_json(self) -> str:
        """The owner as JSON text, always the same for the same owner."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, data: object) -> Owner | None:
        """The owner that :meth:`to_dict` wrote; None for anything else, which this package has not made."""
        if not isinstance(data, Mapping):
            return None
        try:
            key, checkpoint = BatchKey(data["lane"], data["batchId"]), data.get("checkpoint", "")
            if checkpoint and not is_checkpoint_id(checkpoint):
                return None
            return cls(pipeline=str(data["pipeline"]), key=key, epoch=int(data["epoch"]), checkpoint=checkpoint)
        except (KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True, kw_only=True)
class StageTable:
    """The table that one attempt writes. Only audits read it.

    :param table: the table that it becomes, or is added to.
    :param batch: the batch.
    :param epoch: the attempt.
    """

    table: Table
    batch: BatchIdentity
    epoch: int

    @property
    def key(self) -> BatchKey:
        """Lane and id of the batch."""
        return self.batch.key

    @property
    def owner(self) -> Owner:
        """The mark by which its attempt, and no other, drops it."""
        return Owner(
            pipeline=self.table.pipeline, key=self.key, epoch=self.epoch, checkpoint=self.batch.checkpoint
        )  # fmt: skip

    def __str__(self) -> str:
        return f"the stage table of {self.table.name} for batch {self.key} attempt {self.epoch}"
