"""A source that vanished while another appeared may be the same one under a new name: only the user knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from shlex import quote

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import SourceRenamedError
from airflow_provider_microbatch.execution.letters_taken import SOURCE


def check_names(checkpoint: Checkpoint, sources: Iterable[str], ends: Mapping[str, Offset | None]) -> None:
    """Raise if a rename would be taken for a new source, which reads everything a second time. Writes nothing.

    :param sources: names in the pipeline.
    :param ends: of the newest entry of the lane.
    :raises SourceRenamedError: naming the sources that vanished and appeared, with the two ways on; or a rename that
        was given up half way.
    """
    identity, names = checkpoint.identity(), checkpoint.names
    if identity is None:
        return
    # Files under the new name would count for a source that was read: it would be read again from its beginning.
    check_no_half_rename(checkpoint)
    named = list(sources)
    former = [name for name in named if name in names.former()]
    if former:
        raise SourceRenamedError(
            f"source {former[0]!r} of {checkpoint.location} was renamed to {names.of(former[0])!r}, which its older "
            "entries mean by it. Use that name, or one that was never used."
        )
    if identity.format == "v1" or all(name in ends for name in named):
        return
    known = {*ends, *(identity.sources if identity.pipeline is not None else ())}
    appeared = [name for name in named if name not in known and not names.is_new(name)]
    if not appeared:
        return
    # The lane's entries do not tell what only other lanes have read; and not every source has a log.
    read: set[str] = set()
    for others in checkpoint.newest_ends():
        appeared = [name for name in appeared if name not in others]
        if not appeared:
            return
        read |= {name for name, end in others.items() if end is not None}
    # Dead letters that were run again are read under a name that no pipeline of a user's has.
    own, logs = read - {SOURCE}, names.with_log()
    vanished = sorted({name for name, end in ends.items() if end is not None} | own | set(logs) - names.former())
    vanished = [name for name in vanished if name not in named]
    # Remains of a rename that came late, died, and was given up are no log of the source's own.
    copies = {name for name in logs if name not in own and any(names.is_copy(name, of) for of in vanished)}
    appeared = [name for name in appeared if name not in logs or name in copies]
    if appeared and vanished:
        where, old, new = checkpoint.location, vanished[0], appeared[0]
        raise SourceRenamedError(
            f"{where} knows {_names(vanished)}, which the pipeline no longer names; and the pipeline names "
            f"{_names(appeared)}, which has read nothing yet. If that is the same under a new name, all of it would be "
            f"read again: `microbatch rename-source {quote(where)} {quote(old)} {quote(new)}`. If it is really a new "
            f"source: `microbatch add-source {quote(where)} {quote(new)}`."
        )


def check_no_half_rename(checkpoint: Checkpoint, *, again: bool = False) -> None:
    """Raise if notes and logs of a batch's sources may lie under another name: the batch's job would read without them,
    and what it learns would contradict them. Writes nothing.

    :param again: look now, since a command may have begun after this process looked; costs one listing.
    :raises SourceRenamedError: naming the way on, if a rename was given up half way.
    """
    half = checkpoint.names.half(again=again)
    if half is not None:
        raise SourceRenamedError(half.message(checkpoint.location))


def _names(names: list[str]) -> str:
    return ("source " if len(names) == 1 else "sources ") + ", ".join(map(repr, names))
