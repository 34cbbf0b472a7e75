"""Checks of arguments that the definitions of several systems share. Each check raises the definition's own error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from importlib import metadata

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.job import Requirements

Wrong = Callable[[str], DefinitionError]
"""Makes the error of a definition from a text that says what is wrong."""


def check_limit(name: str, value: object, *, wrong: Wrong) -> None:
    """Check that ``value`` is a limit of a batch, or None for no limit.

    :raises DefinitionError: made by ``wrong``, if it is neither.
    """
    if value is not None and (type(value) is not int or value < 1):
        raise wrong(f"{name} must be a whole number above 0, or None for no limit; not {value!r:.200}")


def texts(name: str, value: object, *, wrong: Wrong) -> list[str]:
    """Return the texts as a list, which is the form that JSON gives them when a definition has travelled.

    :raises DefinitionError: made by ``wrong``, unless ``value`` is a list of texts that are not empty.
    """
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) and one for one in value):
        raise wrong(f"{name} must be a list of texts that are not empty; not {value!r:.200}")
    return list(value)


def moment_ms(value: object) -> int | None:
    """Convert an ISO 8601 text with an offset from UTC to milliseconds since the epoch; None for anything else."""
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
    """Return the requirements by which spark-submit loads Spark's connector to a system.

    :param packages: the packages that the user gave; None without jars: the packages for the PySpark that is installed
        here.
    :param name: name of the connector, for people.
    :param newest: a PySpark version that the connector supports, as an example.
    :param made: returns the Maven coordinates for a PySpark version.
    :raises DefinitionError: made by ``wrong``, if no PySpark is installed here.
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
