"""What one commit does to a table into which changes are merged."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks.iceberg.adding import data_file_of
from airflow_provider_microbatch.sinks.iceberg.columns import Columns, arrow_schema
from airflow_provider_microbatch.sinks.iceberg.look import Look
from airflow_provider_microbatch.sinks.iceberg.merged.shown import ShownFiles
from airflow_provider_microbatch.sinks.iceberg.opened import Change
from airflow_provider_microbatch.sinks.merged.files import rewritten
from airflow_provider_microbatch.sinks.merged.judging import Judging, Moved
from airflow_provider_microbatch.sinks.merged.newest import Newest
from airflow_provider_microbatch.sinks.placed.places import DATA

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

ROWS = f"{DATA}/merged/"
"""The folder of the files that readers look at. A removal of orphan files has to find those that no snapshot names."""


@dataclass(frozen=True, kw_only=True)
class Merging:
    """One try to bring a batch's changes in or out.

    :param root: the table's folder.
    :param columns: the columns of the changes that come in.
    :param files: their files.
    """

    judging: Judging
    root: Path
    columns: Columns
    files: Sequence[str]

    def check(self, key: BatchKey) -> None:
        """Check that the changes can be merged into a table that is to be made.

        :raises SinkError: if they cannot be compared.
        """
        before = self.judging.before(None)
        self.judging.moved(key, before, arrow_schema(self._known(before).schema), files=self.files, out=None)

    def change(self, key: BatchKey, look: Look, *, out: int | None) -> Change:
        """What the commit on top of the look does.

        :param out: number of the manifest of the batch's output that goes out; None if there is none.
        :raises FileNotFoundError: if a file is gone, as one is after another publish.
        :raises SinkError: if the changes cannot be compared.
        """
        number = None if look.merged is None else look.merged.number
        before = self.judging.before(number)
        known = self._known(before)
        schema = arrow_schema(known.schema)
        moved = self.judging.moved(key, before, schema, files=self.files, out=out)
        # No two commits have a sequence number, also where the branch was put back between them.
        version = look.table.metadata.next_sequence_number()
        now = self.judging.recorded(before, moved, number=number, fields=known.record, schema=schema, version=version)
        added, removed = ([], []) if moved is None else self._rows(look, moved)
        return Change(added=added, removed=removed, newest=now)

    def _known(self, before: Newest) -> Columns:
        """The columns of all changes, those that come in among them."""
        columns = Columns.of_record(before.fields)
        where = f"the changes that are merged into {self.judging.where}"
        new = self.columns.missing(columns.schema, policy="add_columns", where=where)
        return Columns({**columns.types, **new})

    def _rows(self, look: Look, moved: Moved) -> tuple[list[DataFile], list[DataFile]]:
        """The files that readers look at from now on, and those that they look at no longer."""
        shown = ShownFiles(look.table, self.root, where=self.judging.where)
        schema = arrow_schema(look.table.schema())
        done = rewritten(
            shown,
            shown.sizes,
            without=moved.keys,
            put=moved.rows(schema),
            schema=schema,
            name=lambda: f"{ROWS}{uuid.uuid4().hex}.parquet",
        )
        made = (data_file_of(look.table.metadata, self.root / path) for path in done.made)
        return [one for one in made if one is not None], [shown.entry(path) for path in done.gone]
