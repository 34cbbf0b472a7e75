"""The needs of what reads and writes in Spark, which travel with each job."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """The needs of a reader or a writer beyond Spark and this runtime. They travel with each job.

    :param modules: names of top-level Python modules or packages that are installed where the task runs.
    :param packages: Maven coordinates, ``group:artifact:version``.
    :param jars: paths or addresses of jars.
    """

    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for kind, names in dataclasses.asdict(self).items():
            if not isinstance(names, tuple) or not all(isinstance(name, str) and name for name in names):
                raise ValueError(f"{kind}={names!r} of what a reader or writer requires is no tuple of names.")

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Requirements:
        """Restore the object from the JSON values of a job."""
        return cls(**{kind: tuple(names) for kind, names in values.items()})

    def __or__(self, other: Requirements) -> Requirements:
        """The requirements of both, each once."""
        return Requirements(
            modules=_once(*self.modules, *other.modules),
            packages=_once(*self.packages, *other.packages),
            jars=_once(*self.jars, *other.jars),
        )


def _once(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


NOTHING = Requirements()
"""The requirements of a reader or writer for which Spark and this runtime are enough."""
