"""Files of a stage as a snapshot adds them: their paths, partitions and row statistics."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.iceberg.partitions import value_of

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import DataFileStatistics
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata


def data_file_of(metadata: TableMetadata, path: Path) -> DataFile | None:
    """The entry by which a snapshot adds a file; None for a file without rows.

    :raises SinkError: if the file cannot be part of the table.
    """
    from pyarrow import parquet
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    with parquet.ParquetFile(path) as file:
        if file.metadata.num_rows == 0:
            return None
        statistics = _statistics(metadata, file.metadata)
        rows = _rows(metadata, file, statistics)
    partition = value_of(metadata.spec(), metadata.schema(), rows, where=str(path))
    _leave_out_floats(metadata, statistics)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=path.stat().st_size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _statistics(metadata: TableMetadata, footer: Any) -> DataFileStatistics:
    """:raises SinkError: if the file has a column that the table does not have."""
    from pyiceberg.io.pyarrow import (
        MetricModeTypes,
        MetricsMode,
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )

    schema = metadata.schema()
    plan, ids = compute_statistics_plan(schema, metadata.properties), parquet_path_to_id_mapping(schema)
    unknown = {footer.schema.column(at).path for at in range(footer.num_columns)} - set(ids)
    if unknown:
        raise SinkError(f"a file of the stage has {', '.join(sorted(unknown))}, which the table does not.")
    try:
        return data_file_statistics_from_parquet_metadata(footer, plan, ids)
    except (OverflowError, ValueError):
        # A time for which Python has no value (a year of five digits): only counts are kept, without bounds.
        counts = MetricsMode(MetricModeTypes.COUNTS)
        plan = {id: dataclasses.replace(one, mode=counts) for id, one in plan.items()}
        return data_file_statistics_from_parquet_metadata(footer, plan, ids)


def _leave_out_floats(metadata: TableMetadata, statistics: DataFileStatistics) -> None:
    """Remove statistics of floating-point columns: bounds of a column with NaN are meaningless, and a footer does not
    say whether a column has NaN. A reader that relied on them would miss rows."""
    from pyiceberg.types import DoubleType, FloatType

    for id in list(statistics.column_aggregates):
        if isinstance(metadata.schema().find_field(id).field_type, (FloatType, DoubleType)):
            del statistics.column_aggregates[id]


def _rows(metadata: TableMetadata, file: Any, statistics: DataFileStatistics) -> dict[str, list[Any]]:
    """For each source column of the partition, the file's first value, and the bounds as far as they are known."""
    schema, rows = metadata.schema(), dict[str, list[Any]]()
    for one in metadata.spec().fields:
        name = schema.find_field(one.source_id).name
        try:
            first = next(file.iter_batches(batch_size=1, columns=[name])).column(0)[0].as_py()
        except (OverflowError, ValueError) as error:
            raise SinkError(
                f"a file of the stage has a value of {name}, by which the table is partitioned, that Python has none "
                f"for ({error}): a time beyond the year 9999. It was not published; have the transform leave it out."
            ) from error
        known = statistics.column_aggregates.get(one.source_id)
        bounds = [] if known is None else [known.current_min, known.current_max]
        # Readers who ask for either value pass over a file of the other one's partition. So a file may have rows with
        # and rows without a value neither where its first row has one, nor where that has none.
        if statistics.null_value_counts.get(one.source_id) not in (None, 0, file.metadata.num_rows):
            raise SinkError(
                f"a file of the stage has rows with and without {name}, by which the table is partitioned. It was not "
                "published; run the batch again, to have it staged anew."
            )
        rows[name] = [first, *(bound for bound in bounds if bound is not None)]
    return rows
