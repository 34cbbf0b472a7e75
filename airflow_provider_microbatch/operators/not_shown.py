"""Arguments of mapped tasks that may hold secrets. Airflow writes all arguments of a mapped task into its database with
the DAG, unlike those of a plain task; of an argument that is not a dict Airflow writes the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MAY_HOLD_SECRETS = ("conf", "env_vars")


class NotShown(Mapping[str, Any]):
    """A mapping whose text does not show its values, and is the same at each parse.

    :param values: the values of the mapping.
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
    """The arguments of an operator for the ``partial`` of a mapped task, without a text that shows secrets."""
    return {
        name: NotShown(value) if name in _MAY_HOLD_SECRETS and isinstance(value, Mapping) else value
        for name, value in arguments.items()
    }
