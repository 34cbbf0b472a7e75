"""The rows of a batch, as Spark reads them from a sink's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_microbatch.runtime.job import NOTHING as NO_REQUIREMENTS
from airflow_provider_microbatch.runtime.job import Requirements


@dataclass(frozen=True, kw_only=True)
class PublishedRows:
    """Files that hold the rows of a batch, which has the columns ``lane`` and ``batch_id``; the files may also hold
    rows of other batches.

    :param format: format of the files.
    :param base: the table's folder, in Spark's form: names of folders below it have values of columns.
    :param paths: files or folders, in Spark's form.
    :param options: options of Spark's reader.
    :param access: name of the one of :meth:`OpenSink.secrets` that has further options of the reader; None for none.
    :param requires: what Spark needs to read them.
    """

    format: str
    base: str
    paths: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    access: str | None = None
    requires: Requirements = NO_REQUIREMENTS
