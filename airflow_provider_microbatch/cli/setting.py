"""A setting of Spark on the command line."""

from __future__ import annotations

import argparse


def setting(text: str) -> tuple[str, str]:
    """Key and value of ``KEY=VALUE``.

    :raises argparse.ArgumentTypeError: if it is none.
    """
    key, found, value = text.partition("=")
    if not found or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value
