"""Hides secrets in texts that are stored or logged: errors quote URLs, options and settings, and logs are kept for
long.

Patterns find texts that look like a secret, on the driver too. Where Airflow runs, the Airflow face adds Airflow's own
masker, which knows the secrets of the connections and variables that were used.
"""

from __future__ import annotations

import re
from collections.abc import Callable

HIDDEN = "***"

_CREDENTIAL = (
    r"password|passwd|passphrase|pwd|secret|token|credential|signature|sas[._-]|"
    r"(?:api|access|account|private|shared|encryption)[._-]?key|key[._-]?list"
)
_NAME = re.compile(_CREDENTIAL, re.IGNORECASE)
_LOGIN = re.compile(r"access[._-]?key(?:[._-]?id)?$", re.IGNORECASE)
_EXTRA = re.compile(r"private[._-]?key|credential|key[._-]?list", re.IGNORECASE)
_PATTERNS = (
    # scheme://user:password@host
    (re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@'\"]*:)[^\s@'\"]+(?=@)"), rf"\1{HIDDEN}"),
    (re.compile(r"\b((?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1{HIDDEN}"),
    # name=value, "name": "value", name: value; a value in quotes to its closing quote.
    (
        re.compile(
            rf"([\w.-]*(?:{_CREDENTIAL}|\bsig\b)[\w.-]*['\"]?\s*(?:=>?|:(?!//))\s*)"
            r"(?!Bearer\b|Basic\b)(?:'[^'\n]*'|\"[^\"\n]*\"|[^\s,;&'\"()\[\]{}<>]+)",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), HIDDEN),
)


def _nothing_more(text: str) -> str:
    return text


_more: Callable[[str], str] = _nothing_more


def mask(text: str) -> str:
    """The text with everything that looks like a secret hidden. Masking a text twice gives the same text as masking it
    once."""
    for pattern, hidden in _PATTERNS:
        text = pattern.sub(hidden, text)
    return _more(text)


def mask_by(more: Callable[[str], str]) -> None:
    """Have ``more`` mask every text as well."""
    global _more
    _more = more


def refusal(name: str, value: object) -> str | None:
    """Why an option or setting must not be written into a definition, since definitions are stored and shown; None if
    it may.

    :param name: name of the option.
    :param value: value of the option; never part of the returned text.
    """
    if _NAME.search(name):
        field = "login" if _LOGIN.search(name) else "extra" if _EXTRA.search(name) else "password"
        what = f"{name!r} looks like a credential"
    elif isinstance(value, str) and mask(value) != value:
        field, what = "password", f"the value of {name!r} holds what looks like a credential"
    else:
        return None
    return (
        f"{what}, and what is written here ends up in the checkpoint, in logs and in the triggerer. Keep it in the "
        f"field {field!r} of an Airflow connection, and give it to Spark by the operator's conf= or properties_file=, "
        "which are not stored."
    )
