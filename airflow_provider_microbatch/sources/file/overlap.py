"""Compares paths and globs to tell which lead to the same files, by their texts alone. Looks at no file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from airflow_provider_microbatch.sources.file.listing import Listing, is_hidden, is_partition
from airflow_provider_microbatch.sources.file.path import component_regex, expand_braces, has_wildcard, unescape

_GLOB = re.compile(r"[\\*?\[\]{}]")
_SIGN = re.compile(r"\\.|\[.[^\]]*\]|.", re.DOTALL)
"""A part of a glob component that stands for one character, or for any number of them (``*``)."""


def lists_below(listing: Listing, folder: str) -> bool:
    """Whether the walk would list files that are written into a folder, whatever their names are.

    :param folder: absolute local path, taken literally. A folder above the listing's path counts only where all
        components of the path below the folder are ``*``.
    """
    names = _parts(folder)
    return any(_leads_into(_parts(one), names, recursive=listing.recursive) for one in expand_braces(listing.path))


def _leads_into(parts: Sequence[str], names: Sequence[str], *, recursive: bool) -> bool:
    if not all(_matches(part, name) for part, name in zip(parts, names, strict=False)):
        return False
    if any(set(part) != {"*"} for part in parts[len(names) :]):
        return False
    return all(_is_entered(name, recursive=recursive) for name in names[len(parts) :])


def list_alike(one: Listing, other: Listing) -> bool:
    """Whether both walks could list the same file."""
    if not any(_meet(mine, theirs) for mine in _names(one) for theirs in _names(other)):
        return False
    return any(
        _share(_parts(mine), one, _parts(theirs), other)
        if mine.count("/") <= theirs.count("/")
        else _share(_parts(theirs), other, _parts(mine), one)
        for mine in expand_braces(one.path)
        for theirs in expand_braces(other.path)
    )


def archive_alike(one: Listing, archive: str, other: Listing, others_archive: str) -> bool:
    """Whether a file of each could be moved to the same place, where each keeps its path below its listing's base.

    :param archive: absolute local folder, taken literally; likewise ``others_archive``.
    """
    return any(
        list_alike(mine, theirs) for mine in _moved(one, archive) for theirs in _moved(other, others_archive)
    )  # fmt: skip


def _moved(listing: Listing, archive: str) -> Iterator[Listing]:
    """Yield walks over the files that are moved from a listing to an archive."""
    above = len(listing.base.rstrip("/").split("/"))
    name = listing.base.rpartition("/")[2]
    # No file is looked at: a path that ends like a file name counts as a file, which is moved by its name.
    alone = [_literally(name)] if name.rpartition(".")[0] and name.rpartition(".")[2].isalpha() else []
    for pattern in expand_braces(listing.path):
        yield replace(listing, path="/".join([_literally(archive), *(pattern.split("/")[above:] or alone)]))


def _literally(path: str) -> str:
    return _GLOB.sub(r"\\\g<0>", path)


def _share(short: Sequence[str], upper: Listing, long: Sequence[str], lower: Listing) -> bool:
    """Whether the walk ``upper``, whose pattern has no more components than the other, reaches files of ``lower``."""
    if not all(map(_meet, short, long)):
        return False
    between, last = long[len(short) : -1], long[len(short) :][-1:]
    if not all(_may_be_entered(part, recursive=upper.recursive) for part in between):
        return False
    return all(
        _may_be_file(part, upper) or (_may_be_folder(part) and _may_be_entered(part, recursive=upper.recursive))
        for part in last
    )


def _may_be_entered(part: str, *, recursive: bool) -> bool:
    return _meet(part, "*") and (recursive or _meet(part, "?*=*"))


def _may_be_folder(part: str) -> bool:
    """Whether the last component of a path is not written like a file name: ``*.csv``."""
    return "=" in part or "." not in part or not has_wildcard(part)


def _may_be_file(part: str, listing: Listing) -> bool:
    """Whether the last component of a path may be a file name. No file is looked at, so a dot suffices."""
    named = has_wildcard(part) or "." in part
    return named and _meet(part, "*") and any(_meet(part, pattern) for pattern in _names(listing))


def _names(listing: Listing) -> list[str]:
    return ["*"] if listing.file_name_pattern is None else expand_braces(listing.file_name_pattern)


def _meet(one: str, other: str) -> bool:
    """Whether any name matches both components."""
    for part, glob in ((one, other), (other, one)):
        if not has_wildcard(part):
            return _matches(glob, unescape(part))
    # Two parts that each stand for one character meet at a character that occurs in either, or beside one (``[b-d]``).
    letters = {chr(ord(letter) + step) for letter in f"{one}{other}a" for step in (-1, 0, 1)}

    def signs(part: str) -> list[frozenset[str] | None]:
        found = [(sign, component_regex(sign)) for sign in _SIGN.findall(part)]
        return [None if sign == "*" else frozenset(filter(regex.fullmatch, letters)) for sign, regex in found]

    mine, theirs = signs(one), signs(other)

    @cache
    def meet(at: int, there: int) -> bool:
        left, right = at < len(mine), there < len(theirs)
        if left and mine[at] is None and (meet(at + 1, there) or (right and meet(at, there + 1))):
            return True
        if right and theirs[there] is None:
            return meet(at, there + 1) or (left and meet(at + 1, there))
        if not left or not right:
            return left == right
        here, opposite = mine[at], theirs[there]
        return here is not None and opposite is not None and bool(here & opposite) and meet(at + 1, there + 1)

    return meet(0, 0)


def _matches(part: str, name: str) -> bool:
    """Whether a component of a glob matches a name, by the same rules as the walk."""
    if not has_wildcard(part):
        return unescape(part) == name
    return (part[0] in "._" or not is_hidden(name)) and component_regex(part).fullmatch(name) is not None


def _is_entered(name: str, *, recursive: bool) -> bool:
    return not is_hidden(name) and (recursive or is_partition(name))


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]
