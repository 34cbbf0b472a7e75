"""What calls of a Hive metastore have in common: their conditions, and how long an answer is waited for.

Nobody can end a call whose caller has died, and the metastore carries it out however late. It has a condition for that,
``expected_parameter_key`` (HIVE-26882, HIVE-28121): a table is changed only where a parameter of it still has the value
that the caller has seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

SECONDS = 60.0
"""How long a metastore may take to answer."""

_NEVER = "no table has this value"
_NO_STATISTICS = MappingProxyType({"DO_NOT_UPDATE_STATS": "true"})


def limit(transport: Any) -> None:
    """Have no answer through the transport waited for longer than :data:`SECONDS`; it counts as lost then. By itself a
    wait has no end: a host that lost its power says nothing."""
    from thrift.transport.TSocket import TSocket

    for one in (transport, *vars(transport).values()):  # a transport keeps the one below it to itself
        if isinstance(one, TSocket):
            one.setTimeout(SECONDS * 1000)


def condition(parameter: str, value: str, more: Mapping[str, str] = _NO_STATISTICS) -> Any:
    """The context of a call that is carried out only where the table's parameter has the value.

    :param more: what else the context says.
    """
    from hive_metastore.ttypes import EnvironmentContext

    expected = {"expected_parameter_key": parameter, "expected_parameter_value": value}
    return EnvironmentContext(properties={**more, **expected})


def is_refusal(error: Any) -> bool:
    """Whether a call was refused since its condition does not hold."""
    return "The table has been modified" in str(error.message)


def heeds_conditions(client: Any, place: str, name: str, *, parameter: str) -> bool:
    """Whether the metastore refuses a call whose condition does not hold, as 2.3.10 does; older ones do not look. It is
    asked by a call that none carries out: that would put the table back as it was when it was looked at, also behind a
    caller that has slept since.

    :raises MetaException: if the call is refused for anything else.
    """
    from hive_metastore.ttypes import FieldSchema, InvalidOperationException, MetaException

    table = client.get_table(place, name)
    # Refused by each, and behind the look at the condition by those that have one.
    table.partitionKeys = [*(table.partitionKeys or ()), FieldSchema(name="microbatch_none", type="string")]
    try:
        client.alter_table_with_environment_context(place, name, table, condition(parameter, _NEVER))
    except InvalidOperationException:
        return False
    except MetaException as error:
        if not is_refusal(error):
            raise
        return True
    return False
