"""Which paths lead to the same files, by their letters alone. Looks at no file."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_microbatch.sources.file_listing import Listing, is_hidden, is_partition
from airflow_provider_microbatch.sources.file_path import component_regex, expand_braces, has_wildcard, unescape


def lists_below(listing: Listing, folder: str) -> bool:
    """Whether the walk would come upon what is written into a folder, whatever it is called there.

    :param folder: absolute local path, taken literally. One above the listing's path is come upon only where all that
        the path has below it is ``*``.
    """
    names = _parts(folder)
    return any(_leads_into(_parts(one), names, recursive=listing.recursive) for one in expand_braces(listing.path))


def _leads_into(parts: Sequence[str], names: Sequence[str], *, recursive: bool) -> bool:
    if not all(_matches(part, name) for part, name in zip(parts, names, strict=False)):
        return False
    if any(set(part) != {"*"} for part in parts[len(names) :]):
        return False
    return all(_is_entered(name, recursive=recursive) for name in names[len(parts) :])


def _matches(part: str, name: str) -> bool:
    """Whether a component of a glob matches a name, as the walk does it."""
    if not has_wildcard(part):
        return unescape(part) == name
    return (part[0] in "._" or not is_hidden(name)) and component_regex(part).fullmatch(name) is not None


def _is_entered(name: str, *, recursive: bool) -> bool:
    return not is_hidden(name) and (recursive or is_partition(name))


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]
