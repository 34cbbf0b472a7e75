"""Converts paths between the forms of the user, the file system, and Spark's source log.

* The user's path is what Spark's reader takes: a local path or a ``file:`` URL that is **not** percent-decoded, with
  Hadoop's globs (``*``, ``?``, ``[a-c]``, ``[^a]``, ``{a,b}``; a backslash takes the next character literally).
* The source log holds ``SparkPath.urlEncoded``: ``java.net.URI``'s own quoting, which leaves non-ASCII letters alone.
"""

from __future__ import annotations

import os
import re
import unicodedata
from functools import lru_cache
from urllib.parse import unquote

from airflow_provider_microbatch.exceptions import DefinitionError, SourceError
from airflow_provider_microbatch.stores.object_store.address import why_unordered

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_OBJECTS = ("s3://", "s3a://")
_OBJECT = re.compile(r"s3a?://(?:(?P<conn_id>[A-Za-z0-9_.#-]+)@)?(?P<bucket>[^@/]+)/(?P<key>.*)", re.DOTALL)
_GLOB_CHARACTERS = frozenset("*?[{\\")
_NEVER_QUOTED = re.compile(r"[A-Za-z0-9_\-!.~'()*;/:@&=+$,]*")
"""The characters that ``java.net.URI`` leaves as they are in a path."""


def absolute_path(location: str, *, field: str) -> str:
    """Convert the user's location to the form that the source uses: an absolute local path, or ``s3a://bucket/key``,
    which is Spark's name for an object. The connection is not part of it.

    :raises DefinitionError: as :func:`local_path`, or for a malformed address of a bucket.
    """
    if is_object(location):
        return object_path(location, field=field)
    return local_path(location, field=field)


def is_object(path: str) -> bool:
    """Whether the path is an address in an object store."""
    return path.startswith(_OBJECTS)


def object_path(location: str, *, field: str) -> str:
    """``s3a://bucket/key`` for ``s3://conn_id@bucket/key``, without a trailing slash. Keys are taken literally.

    :raises DefinitionError: if it names no bucket and folder, a bucket that lists in no order, or a key that no client
        can request.
    """
    found = _OBJECT.fullmatch(location)
    if found is None or is_glob(found["bucket"]):
        raise DefinitionError(
            f"{field}: an address in an object store is s3://conn_id@bucket/folder, or s3://bucket/folder for the "
            "environment's credentials; no key or password stands in it, and no glob in the bucket's name."
        )
    if (told := why_unordered(found["bucket"])) is not None:
        raise DefinitionError(f"{field}: {told}")
    key = found["key"].rstrip("/")
    if not key or any(part in ("", ".", "..") for part in key.split("/")):
        raise DefinitionError(
            f"{field}: {found['key']!r} of bucket {found['bucket']!r} is empty or has an empty part, '.' or '..'. Name "
            "a folder below the bucket."
        )
    return f"s3a://{found['bucket']}/{key}"


def connection_of(location: str) -> str | None:
    """The connection's id in an address in an object store; None if the address names no connection."""
    found = _OBJECT.fullmatch(location)
    return None if found is None else found["conn_id"]


def local_path(location: str, *, field: str) -> str:
    """The absolute local path for the user's location, without a trailing slash. Looks at no file.

    :raises DefinitionError: for a relative path, another host, or a scheme that is not supported.
    """
    path = location
    scheme = _SCHEME.match(location)
    if scheme:
        if scheme[1] != "file":
            raise DefinitionError(
                f"{field} {location!r}: scheme {scheme[1]!r} is not supported; use an absolute local path, a file: URL "
                "(file:///landing/orders) or an address in an object store (s3://conn_id@bucket/landing/orders)."
            )
        path = location[len("file:") :]
        if path.startswith("//") and not path.startswith("///"):
            raise DefinitionError(f"{field} {location!r} names a host; write file:///… with three slashes.")
    if not path.startswith("/"):
        raise DefinitionError(
            f"{field} {location!r} is relative; scheduler, worker and Spark run in different folders, so write an "
            "absolute path."
        )
    return "/" + os.path.normpath(path).lstrip("/")


def check_readable(path: str) -> None:
    """Refuse a file whose name Spark cannot read, before it is planned.

    :raises SourceError: for a name that is not UTF-8 (the JVM cannot name it), or that holds a colon (Hadoop's local
        file system takes the text before the colon for a scheme when it looks for the checksum).
    """
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise SourceError(f"the name {os.fsencode(path)!r} is not UTF-8: Spark cannot read it. Rename it.") from error
    if ":" in path.rpartition("/")[2]:
        raise SourceError(f"the file name of {path!r} has a colon: Spark cannot read it. Rename it.")


def to_url(path: str) -> str:
    """A path as Spark writes it into its source log: ``/a b/é`` becomes ``file:///a%20b/é``."""
    if is_object(path):
        bucket, _, key = path.removeprefix("s3a://").partition("/")
        return f"s3a://{bucket}/{''.join(map(_quote, key))}"
    if _NEVER_QUOTED.fullmatch(path):
        return "file://" + path
    return "file://" + "".join(map(_quote, path))


def _quote(character: str) -> str:
    if _NEVER_QUOTED.fullmatch(character):
        return character
    # URI keeps "other" characters: not ASCII, no ISO control, no space separator.
    if character >= "\x80" and unicodedata.category(character) not in ("Cc", "Zs", "Zl", "Zp"):
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8"))


def from_url(url: str) -> str:
    """The path in an entry of the source log.

    :raises SourceError: if it lies on another file system.
    """
    if is_object(url):
        return unquote(url)
    if not url.startswith("file:/"):
        raise SourceError(
            f"the source log names {url!r}; only local files (file:///…) and objects (s3a://…) can be read."
        )
    path = "/" + url[len("file:") :].lstrip("/")
    return unquote(path) if "%" in path else path


def is_glob(text: str) -> bool:
    """True if ``text`` holds a character that has a meaning in a glob."""
    return not _GLOB_CHARACTERS.isdisjoint(text)


@lru_cache(maxsize=256)  # all sources are held against each other, at each plan
def literal_prefix(path: str) -> str:
    """The longest leading part of a path whose components hold no wildcard and no brace, with escapes removed."""
    kept: list[str] = []
    for part in path.split("/"):
        if has_wildcard(part, "*?[{"):
            break
        kept.append(unescape(part))
    return "/".join(kept) or "/"


def expand_braces(pattern: str) -> list[str]:
    """The patterns that the ``{a,b}`` groups of a pattern stand for, without duplicates, in order.

    :raises DefinitionError: if a brace is not closed.
    """
    opened = _find_open(pattern)
    if opened is None:
        return [pattern]
    depth, start, alternatives, position = 0, opened + 1, [], opened
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            position += 1
        elif character == "{":
            depth += 1
        elif character == "," and depth == 1:
            alternatives.append(pattern[start:position])
            start = position + 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                alternatives.append(pattern[start:position])
                break
        position += 1
    else:
        raise DefinitionError(f"glob {pattern!r}: a '{{' is not closed; write '\\{{' for the character itself.")
    head, tail = pattern[:opened], pattern[position + 1 :]
    expanded = [found for choice in alternatives for found in expand_braces(head + choice + tail)]
    return list(dict.fromkeys(expanded))


def _find_open(pattern: str) -> int | None:
    position = 0
    while position < len(pattern):
        if pattern[position] == "\\":
            position += 1
        elif pattern[position] == "{":
            return position
        position += 1
    return None


def unescape(component: str) -> str:
    """The literal text of a component whose only glob characters are backslashes."""
    return re.sub(r"\\(.)", r"\1", component)


def has_wildcard(component: str, wildcards: str = "*?[") -> bool:
    """True if a component can match more than one name: it holds one of ``wildcards`` that is not escaped."""
    return not frozenset(wildcards).isdisjoint(re.sub(r"\\.", "", component))


def component_regex(component: str) -> re.Pattern[str]:
    """A component of a Hadoop glob, braces expanded, as a regular expression.

    :raises DefinitionError: for a ``[`` that is not closed.
    """
    out: list[str] = []
    position = 0
    while position < len(component):
        character = component[position]
        if character == "\\" and position + 1 < len(component):
            position += 1
            out.append(re.escape(component[position]))
        elif character == "*":
            out.append(".*")
        elif character == "?":
            out.append(".")
        elif character == "[":
            closed = component.find("]", position + 2)
            if closed < 0:
                raise DefinitionError(f"glob {component!r}: a '[' is not closed; write '\\[' for the character itself.")
            inner = component[position + 1 : closed]
            negated = inner[0] in "^!"
            inner = (inner[1:] if negated else inner).replace("\\", "").replace("[", "\\[").replace("^", "\\^")
            out.append(f"[{'^' if negated else ''}{inner}]")
            position = closed
        else:
            out.append(re.escape(character))
        position += 1
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error as error:
        raise DefinitionError(f"glob {component!r} cannot be understood: {error}.") from error
