"""Refuses a transform that keeps other state than the batches before have left, with the way on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from airflow_provider_microbatch.runtime.failure import BatchFailure

_CODES = (
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_EVOLUTION_THRESHOLD_EXCEEDED",
    "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE",
    "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
    "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION",
    "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE",
    "STATE_STORE_STATE_SCHEMA_FILES_THRESHOLD_EXCEEDED",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
)
# Behind what differs Spark names a setting that reads the state all the same, as what it is not.
_TOLD = re.compile(rf"\[(?:{'|'.join(_CODES)})[A-Z_.]*\] (.+?)\s*(?:If you want to force|SQLSTATE|$)", re.DOTALL)

_KEEPING = (
    "Aggregate",
    "Distinct",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Join",
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "GlobalLimit",
)
"""Nodes of Spark's plan that keep state, where all that they are made of is streams."""


PROCESSOR = "TransformWithState"
"""What the names of nodes of ``transformWithState`` begin with, in each of its forms."""


def refuse_other_state(error: str) -> None:
    """Refuse the transform, if this is what Spark's error says.

    :raises BatchFailure: naming what differs, and the way on.
    """
    found = _TOLD.search(error)
    if found is not None:
        told = " ".join(found[1].split()).rstrip(".")
        raise _refusal(f"the transform keeps other state than the batches before have left: {told}")


def refuse_first_operator(nodes: Iterable[Any]) -> None:
    """Refuse a transform that keeps state, behind batches that had no operator that did. Spark would look for state
    that is not there, and leave a record of the operator behind, for which it would refuse the transform of before.

    :param nodes: the nodes of Spark's plan, in its JVM.
    :raises BatchFailure: naming the operator, and the way on.
    """
    for node in nodes:
        kind, children = node.getClass().getSimpleName(), node.children()
        streams = [children.apply(number).isStreaming() for number in range(children.size())]
        # Beside the stream of a processor there is its initial state, which is none.
        if (kind in _KEEPING and all(streams)) or (kind.startswith(PROCESSOR) and any(streams)):
            raise _refusal(
                f"the batches before have kept none, and the transform has an operator that keeps it ({kind}) now: it "
                "would not know their rows"
            )


def refuse_other_sides(before: Sequence[Any], now: Sequence[Any]) -> None:
    """Refuse a transform whose joins have other streams on their sides. Spark knows the rows of each side by its place,
    and compares nothing but types: those of one stream would be taken for those of the other, and meet nothing.

    :param before: as :func:`.query_plan.sides_of` told them of the batch before.
    :raises BatchFailure: naming the streams, and the way on.
    """
    for then, here in zip(before, now, strict=False):
        # Of other names nobody knows here which is which: a source may have been renamed.
        if then != here and {*then[0], *then[1]} == {*here[0], *here[1]}:
            was, is_now = (" with ".join("+".join(side) for side in sides) for sides in (then, here))
            raise _refusal(
                f"the transform joins {is_now} where the batches before have joined {was}: the rows that are kept of "
                "each side would be taken for those of the other"
            )


def refuse_other_first_attempt(what: str) -> NoReturn:
    """Refuse a transform that keeps other state than an attempt at the same first batch has left before.

    :param what: what differs in the folder of state.
    :raises BatchFailure: naming the way on.
    """
    raise _refusal(
        "the transform keeps other state than an attempt at this batch has left before, with other operators, or "
        f"another spark.sql.shuffle.partitions ({what})",
        "; or put away what was left, by the command `rewind --to -1 --drop-output`, which has all read again",
    )


def refuse_other_spark(kept_by: str, version: str) -> None:
    """Refuse state that was kept by a Spark whose files this one does not read. Spark says that a file is not there.

    :param kept_by: version of the Spark of the batch before.
    :param version: version of this one.
    :raises BatchFailure: naming both, and the way on.
    """
    if _is_4_0(kept_by) != _is_4_0(version):
        raise BatchFailure(
            "runtime",
            f"the state that the batch goes on from was kept by Spark {kept_by}, and this is Spark {version}: 4.0 and "
            "later versions do not read each other's state. Nothing was read. Run the batches by the version of "
            "before; or begin a checkpoint and a table of their own with the other one, which read from the beginning",
        )


def _is_4_0(version: str) -> bool:
    return version.startswith("4.0.")


def _refusal(what: str, more: str = "") -> BatchFailure:
    return BatchFailure(
        "transform",
        f"{what}. State is read by the operators that have written it: the same ones in the same order, with grouping "
        "columns, aggregates and variables of the same types. Put them back as they were, or begin a checkpoint and a "
        f"table of their own with the new transform, which read from the beginning{more}",
    )
