"""A module is small enough to be read at one sitting."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 500
NOT_YET_SPLIT = {
    "tests/checkpoint/test_sql.py": 612,
    "tests/engines/test_connect.py": 501,
    "tests/execution/model.py": 572,
}
"""Modules that are longer, and how long they are: they get shorter, and leave this list."""


def test_no_module_is_longer_than_the_limit() -> None:
    paths = [path for folder in ("airflow_provider_microbatch", "tests") for path in (ROOT / folder).rglob("*.py")]
    lines = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in paths}
    too_long = {path: count for path, count in lines.items() if count > NOT_YET_SPLIT.get(path, LIMIT)}
    assert lines
    assert too_long == {}
    assert [path for path in NOT_YET_SPLIT if lines.get(path, 0) <= LIMIT] == []
