"""How a system joins the contract suites: each suite's table names it, and its cases are told apart by that name."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

FIXTURE = "system_name"
"""The parameter of every case that says which system it is about. A suite has a fixture of this name::

    SYSTEMS = {"posix": …}
    system_name = registered(SYSTEMS)
"""


def marked(systems: Iterable[str], *, slow: Collection[str] = (), asked_for: Collection[str] = ()) -> list[Any]:
    """Names of systems as parameters, as :func:`registered` has them."""
    marks = dict.fromkeys(slow, pytest.mark.slow) | dict.fromkeys(asked_for, pytest.mark.asked_for)
    return [pytest.param(name, marks=marks[name]) if name in marks else name for name in systems]


def registered(systems: Iterable[str], *, slow: Collection[str] = (), asked_for: Collection[str] = ()) -> Any:
    """The fixture :data:`FIXTURE` over the names of a suite's systems.

    :param slow: those that are none of the inner loop's, such as what a server is started for.
    :param asked_for: those of which each case takes so long that they run only where ``make contract`` names them.
    """

    @pytest.fixture(params=marked(systems, slow=slow, asked_for=asked_for), name=FIXTURE)
    def system_name(request: pytest.FixtureRequest) -> str:
        return str(request.param)

    return system_name


def system_of(item: pytest.Item) -> str | None:
    """The system that a case is about; None if it is about none."""
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get(FIXTURE)
