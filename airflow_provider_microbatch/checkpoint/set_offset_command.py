"""``microbatch set-offset`` as it is typed: for errors that name it, and for the record of the command itself."""

from __future__ import annotations

from shlex import quote

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE


def set_offset_command(
    *,
    location: str | None,
    source: str,
    offset: Offset | None,
    lane: str = LIVE,
    skip: bool = False,
    reread: bool = False,
) -> str:
    """The command, quoted for a shell: it does what is said when it is pasted.

    :param location: address of the checkpoint; None: the command as the record of a command has it, which begins with
        its name.
    :param source: name of the source.
    :param offset: the position, in the form of the source's offsets; None for before anything.
    :param lane: the lane whose position is set.
    :param skip: the data in between may be lost.
    :param reread: data that was read already may be read and published again.
    """
    words = ["set-offset"] if location is None else ["microbatch", "set-offset", quote(location)]
    words += ["--source", quote(source), "--offset", quote("null" if offset is None else offset)]
    words += ["--allow-skip"] * skip + ["--allow-reread"] * reread
    return " ".join(words + ([] if lane == LIVE else ["--lane", quote(lane)]))
