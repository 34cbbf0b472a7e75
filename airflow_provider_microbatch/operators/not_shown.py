"""Arguments of mapped tasks that may hold secrets. Airflow writes all arguments of a mapped task into its database with
the DAG, where those of a plain task never come: of what is no dict it writes the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MAY_HOLD_SECRETS = ("conf", "env_vars")


class NotShown(Mapping[str, Any]):
    """A mapping whose text tells nothing of it, and is the same at each parse.

    :param values: what it holds.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return "(not shown)"


def not_shown(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of an operator, for the ``partial`` of a mapped task."""
    return {
        name: NotShown(value) if name in _MAY_HOLD_SECRETS and isinstance(value, Mapping) else value
        for name, value in arguments.items()
    }
