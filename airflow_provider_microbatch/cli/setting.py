"""Values on the command line: a setting of Spark, a number."""

from __future__ import annotations

import argparse


def setting(text: str) -> tuple[str, str]:
    """Key and value of ``KEY=VALUE``.

    :raises argparse.ArgumentTypeError: if the text has another form.
    """
    key, found, value = text.partition("=")
    if not found or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def positive(text: str) -> int:
    """A whole number from 1 on.

    :raises argparse.ArgumentTypeError: if the text is not such a number.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)
