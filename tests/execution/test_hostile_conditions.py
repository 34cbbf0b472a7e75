"""A condition is a filter and no program: what a checkpoint has on record of what is to be forgotten, or of what is
expected, reaches Spark only if it is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import CorruptEntryError, DefinitionError
from airflow_provider_microbatch.expectations import check_condition
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine

PROGRAMS = (
    "java_method('java.lang.System', 'load', '/tmp/x.so') IS NULL",
    "reflect('java.lang.System', 'getenv', 'TOKEN') = 'x'",
    "try_reflect ('java.lang.System', 'getenv', 'TOKEN') = 'x'",
    "system.builtin.`reflect`('java.lang.System', 'getenv', 'TOKEN') = 'x'",
    "\"reflect\"('java.lang.System', 'getenv', 'TOKEN') = 1",
    "IDENTIFIER('ref' || 'lect')('java.lang.System', 'getenv', 'TOKEN') = 'x'",
    r"r'\' = reflect('java.lang.System', 'getenv', 'TOKEN') OR 'x' = 'y'",
    "`a'` = reflect('java.lang.System', 'getenv', 'TOKEN') OR `b'`",
    "$$'$$ = reflect('java.lang.System', 'getenv', 'TOKEN') OR 'x' = $$'$$",
    "id IN (SELECT id FROM parquet.`/data/secret`)",
    "exists(FROM parquet.`/data/secret`)",
    "exists(TABLE secret)",
    "exists((VALUES (1) UNION TABLE secret))",
    "exists(WITH one AS (VALUES (1)) FROM one)",
    "exists(MAP 1 USING 'touch /tmp/x' AS (y))",
    "`rand`() < 0.5",
)


@pytest.mark.parametrize("condition", PROGRAMS)
def test_a_condition_runs_nothing_and_reads_nothing_else(condition: str) -> None:
    with pytest.raises(DefinitionError, match=r"^it "):
        check_condition(condition, what="it")


@pytest.mark.parametrize(
    "condition",
    [
        "note <> 'select reflect(x) from y'",
        "size(values) > 0 AND (`table` = 1)",
        "`customer's name` IS NOT NULL",
        r"name RLIKE r'^\d+$' AND other <> 'it\'s'",
        "year(ts) > extract(year FROM other) AND a IS DISTINCT FROM b",
        "exists(items, x -> x.price < 0) AND map('a', 1)['a'] = 1",
        "id IN (1, 2) AND reflected > 0",
    ],
)
def test_what_is_a_filter_is_let_through(condition: str) -> None:
    assert check_condition(f" {condition} ", what="it") == condition


@pytest.mark.parametrize("condition", PROGRAMS[:1])
def test_what_somebody_wrote_into_the_checkpoint_never_reaches_spark(tmp_path: Path, condition: str) -> None:
    world, engine = World(tmp_path), InlineEngine()
    world.land(1)
    world.checkpoint.forgotten.add(condition, sinks=(), by="stranger", at_ms=1)
    with pytest.raises(CorruptEntryError, match="microbatch/forgotten/0") as raised:
        world.run(0, engine)
    assert "java" not in str(raised.value)
    assert engine.jobs == []
