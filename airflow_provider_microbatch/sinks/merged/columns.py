"""Which columns readers of a table get, of those that its changes have."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_provider_microbatch.runtime.changes import DELETED
from airflow_provider_microbatch.sinks.merge import Merge


def shown(names: Collection[str], merge: Merge) -> Mapping[str, str]:
    """The columns that readers get, each with the column of the changes whose type it has.

    :param names: the columns of the changes; without the one that orders them if no batch has had a frame yet.
    """
    aside, sequence = (DELETED, *merge.leave_out), merge.sequence_by[0]
    bounds = dict.fromkeys(merge.bounds, sequence) if sequence in names else {}
    return {**{name: name for name in names if name not in aside}, **bounds}
