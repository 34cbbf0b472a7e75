"""Find a source or sink by name without importing the others.

A registry maps short names to ``module:Class`` and imports a module only when its name is asked for, so that a
missing client library of one system is no concern of those who use another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from airflow_provider_microbatch.definition import Definition, load_class
from airflow_provider_microbatch.exceptions import DefinitionError

D = TypeVar("D", bound=Definition)

DISTRIBUTION = "airflow-provider-microbatch"


@dataclass(frozen=True)
class Entry:
    """Where a name leads.

    :param path: ``module:Class``.
    :param extra: the extra of this distribution that brings what the module imports; None if it needs nothing.
    """

    path: str
    extra: str | None = None


class Registry(Generic[D]):
    """Names of one kind of definition.

    :param kind: ``source`` or ``sink``, for messages.
    :param base: the class that every entry must be a subclass of.
    :param entries: by name.
    """

    def __init__(self, kind: str, base: type[D], entries: Mapping[str, Entry]) -> None:
        self._kind = kind
        self._base = base
        self._entries = dict(entries)

    def names(self) -> list[str]:
        """All names, sorted. Imports nothing."""
        return sorted(self._entries)

    def load(self, name: str) -> type[D]:
        """The class behind ``name``, imported now. A ``module:Class`` of the user's own is taken as it is.

        :raises DefinitionError: for an unknown name, a class of another kind, or a module whose requirements are not
            installed; the message then has the ``pip install`` to run.
        """
        entry = self._entries.get(name) or (Entry(name) if ":" in name else None)
        if entry is None:
            known = ", ".join(self.names())
            raise DefinitionError(
                f"there is no {self._kind} {name!r}; known are {known}. For a class of your own write 'module:Class'."
            )
        try:
            loaded = load_class(entry.path)
        except DefinitionError as error:
            if entry.extra is None or not isinstance(error.__cause__, ImportError):
                raise
            raise DefinitionError(
                f"{self._kind} {name!r} needs a package that is not installed ({error.__cause__}). "
                f"Run: pip install '{DISTRIBUTION}[{entry.extra}]'"
            ) from error
        if not issubclass(loaded, self._base):
            raise DefinitionError(f"{entry.path!r} is not a {self._base.__name__}.")
        return loaded
