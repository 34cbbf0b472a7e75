"""What is asked of the sink and its table before changes are merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.merged.newest import Newest
from airflow_provider_microbatch.sinks.placed.data_files import DataFiles

Made = TypeVar("Made")

ANEW = "give the pipeline another table and another checkpoint: all that its sources have is read again"
"""The way on where nothing brings back what a table has lost. Another table alone is refused: the batches that are
committed are in the one of before."""


def check_order(kinds: Mapping[str, str | None], merge: Merge, *, where: str) -> None:
    """Check that changes of these columns have keys, and an order.

    :param kinds: types by name; None for nested ones.
    :raises SinkError: naming the column.
    """
    for name in (*merge.keys, *merge.sequence_by):
        kind = kinds.get(name)
        what = None
        if name not in kinds:
            what = f"has no column {name!r}"
        elif kind is None:
            what = f"has the column {name!r} of nested values"
        elif name in merge.keys and kind in ("float", "double"):
            what = f"has the column {name!r} of the type {kind}, which equals itself not always"
        if what is not None:
            raise SinkError(
                f"the result {what}, by which changes are merged into {where}. Nothing was "
                "published; change the transform, or the merge."
            )


def check_like_before(before: Newest | Merge, merge: Merge, *, where: str) -> None:
    """:raises SinkError: if the changes of before were merged by other keys, in another order, or into other rows."""
    had, has = (before.keys, before.sequence_by), (merge.keys, merge.sequence_by)
    if tuple(map(list, had)) != tuple(map(list, has)):
        raise SinkError(
            f"changes are merged into {where} by keys={list(had[0])} and "
            f"sequence_by={list(had[1])}, and the sink says {list(has[0])} and {list(has[1])}: which of two "
            "changes is newer nobody could say. Nothing was written; go on by those of before, or write to "
            "another table."
        )
    if list(before.bounds) != list(merge.bounds):
        raise SinkError(
            f"{where} has {_in_words(before.bounds)}, and the sink says {_in_words(merge.bounds)} (merge=…). Nothing "
            "was written; go on as before, or write to another table."
        )


def check_files(before: Newest, files: DataFiles, *, where: str) -> None:
    """:raises SinkError: if a file of the newest changes is not as it was written.
    :raises FileNotFoundError: if one is gone.
    """
    for path, size in before.files.items():
        if (there := files.size(path)) != size:
            raise SinkError(
                f"{path} of {where} has {there} bytes, not {size}: somebody has changed the newest changes, by which "
                "the next change of a key is judged. Bring it back from a backup. Nothing was changed."
            )


def _in_words(bounds: Sequence[str]) -> str:
    if not bounds:
        return "the newest state of each key (scd_type=1)"
    return f"all versions of each key, from {bounds[0]!r} to {bounds[1]!r} (scd_type=2)"


def rows_there(where: str) -> SinkError:
    """The table has batches of rows."""
    return SinkError(
        f"{where} has batches of rows, and the sink merges changes (merge=…). Give "
        "the pipeline another table. Nothing was written."
    )


def unless_outdated(make: Callable[[], Made], *, is_outdated: Callable[[], bool], log: str, where: str) -> Made | None:
    """What one try to bring changes in or out makes; None if other commits have made useless what it has read: another
    publish has removed what it has replaced, or a janitor that, with its manifest.

    :raises SinkError: if it cannot be made.
    """
    try:
        return make()
    except (FileNotFoundError, SinkError) as error:
        # Nothing is written anew under its name: only what is gone may be another commit's doing.
        is_gone = isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError)
        if is_gone and is_outdated():
            return None
        if isinstance(error, FileNotFoundError):
            raise lacking(error, log=log, where=where) from error
        raise


def lacking(error: FileNotFoundError, *, log: str, where: str) -> SinkError:
    """A file of the newest changes is gone, or one of the changes of a batch.

    :param log: what of the table tells the newest changes by their number.
    """
    return SinkError(
        f"a file is gone that {where} needs to merge changes ({error}): somebody has removed "
        f"it, or put back {log} alone. Nothing was changed. Bring the folder _microbatch of the table back from "
        f"its backup, or the whole table, of one moment; or {ANEW}."
    )
