"""Keys of changes, as a set that rows and files are held against."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import cached_property
from typing import Any


class Keys:
    """:param rows: an Arrow table that has the columns of the keys, and no null in them.
    :param names: these columns.
    """

    def __init__(self, rows: Any, names: Sequence[str]) -> None:
        self.names = list(names)
        self._rows = rows.select(self.names)

    def __bool__(self) -> bool:
        return bool(self._rows.num_rows)

    @property
    def schema(self) -> Any:
        """The types of the columns."""
        return self._rows.schema

    def marks(self, rows: Any) -> Any:
        """For each row whether its key is one of them."""
        import pyarrow.compute as pc

        return pc.is_in(_as_one(rows.select(self.names).cast(self.schema)), value_set=self._values)

    @cached_property
    def _values(self) -> Any:
        return _as_one(self._rows)

    def may_be_in(self, metadata: Any) -> bool:
        """Whether a file may have one of them.

        :param metadata: of a Parquet file.
        """
        names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
        if not self or not set(self.names) <= set(names):
            return False
        low, high = self._ends
        index = names.index(self.names[0])
        for group in range(metadata.num_row_groups):
            bounds = metadata.row_group(group).column(index).statistics
            if bounds is None or not bounds.has_min_max:
                return True
            try:
                least, most = bounds.min, bounds.max
            except OverflowError:  # a day that Python has not
                return True
            if low is None or type(least) is not type(low) or (least <= high and low <= most):
                return True
        return False

    @cached_property
    def _ends(self) -> tuple[Any, Any]:
        """The least and the greatest value of the first column; None: of a type whose bounds not all writers tell,
        or not to be told in Python."""
        import pyarrow.compute as pc

        try:
            found = pc.min_max(self._rows.column(self.names[0])).as_py()
        except OverflowError:  # a day that Python has not
            return None, None
        low, high = found["min"], found["max"]
        is_told = isinstance(low, (int, str, dt.date)) and not isinstance(low, (bool, dt.datetime))
        return (low, high) if is_told else (None, None)


def _as_one(rows: Any) -> Any:
    """One value for each row, which no other key has: of several columns their texts, each behind its length."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [column.combine_chunks() for column in rows.columns]
    if len(columns) == 1:
        return columns[0]
    parts = list[Any]()
    for column in columns:
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        text = column if pa.types.is_binary(column.type) else column.cast(pa.string()).cast(pa.binary())
        parts += [pc.binary_length(text).cast(pa.string()).cast(pa.binary()), text]
    return pc.binary_join_element_wise(*parts, pa.scalar(b":"))
