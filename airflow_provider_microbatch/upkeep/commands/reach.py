"""How far back a rewind can go where retention has removed what is before that."""

from __future__ import annotations


def no_further_than(first: int, kept: list[int]) -> str:
    """The ways on where nothing before ``first`` can be rewound to.

    :param kept: ids in the offset log. A rewind to the newest of them would change nothing.
    """
    if first < kept[-1]:
        return f"Rewind to {first} or later."
    return (
        f"Nothing can be rewound here. To read again what is kept, clear the task of batch {kept[-1]}; what older "
        "batches read is no longer on record: bring their rows back from a backup of the table, or start a new "
        "checkpoint and a new table, which read all that the sources have. min_batches_to_retain keeps more from now "
        "on."
    )
