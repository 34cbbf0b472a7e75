"""What is said of a promise that was tried: of sources and sinks of the user's own."""

from __future__ import annotations

from dataclasses import dataclass

OK, FAILED, NOT_TRIED = "ok", "FAILED", "not tried"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of one case.

    :param case: what is promised, as a sentence.
    :param state: how it went: ``OK``, ``FAILED`` or ``NOT_TRIED``.
    :param message: what went wrong, or why nothing could be tried.
    """

    case: str
    state: str
    message: str = ""


class Broken(Exception):
    """A promise is not kept; the message says how."""


class NotTried(Exception):
    """There is nothing to try it with; the message says what it takes."""
