"""Checks of arguments that definitions of several systems have in common. Each error is the definition's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from importlib import metadata

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.job import Requirements

Wrong = Callable[[str], DefinitionError]
"""The error of a definition, from what is wrong with it."""


def check_limit(name: str, value: object, *, wrong: Wrong) -> None:
    """Raise unless it is a bound of a batch, or None for no bound.

    :raises DefinitionError: as ``wrong`` makes it.
    """
    if value is not None and (type(value) is not int or value < 1):
        raise wrong(f"{name} must be a whole number above 0, or None for no limit; not {value!r:.200}")


def texts(name: str, value: object, *, wrong: Wrong) -> list[str]:
    """The texts as a list, which is what JSON brings back when a definition has travelled.

    :raises DefinitionError: as ``wrong`` makes it, unless each is a text that is not empty.
    """
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) and one for one in value):
        raise wrong(f"{name} must be a list of texts that are not empty; not {value!r:.200}")
    return list(value)


def moment_ms(value: object) -> int | None:
    """ISO 8601 text with its offset from UTC as milliseconds since the epoch; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return None if moment.tzinfo is None else round(moment.timestamp() * 1000)


def connector(
    packages: Sequence[str] | None,
    jars: Sequence[str],
    *,
    name: str,
    newest: str,
    made: Callable[[str], str],
    wrong: Wrong,
) -> Requirements:
    """What a spark-submit brings of Spark's connector to a system.

    :param packages: as the user gave them; None, and no jars: those for the PySpark that is installed here.
    :param name: of the connector, for people.
    :param newest: a version of PySpark for which there is one, as an example.
    :param made: the Maven coordinates for a version of PySpark.
    :raises DefinitionError: as ``wrong`` makes it, if no PySpark is installed here.
    """
    if packages is None and not jars:
        try:
            packages = (made(metadata.version("pyspark")),)
        except metadata.PackageNotFoundError:
            raise wrong(
                f"no pyspark is installed here by which to tell {name}'s version: "
                f"give packages, such as {[made(newest)]}"
            ) from None
    return Requirements(packages=tuple(packages or ()), jars=tuple(jars))
