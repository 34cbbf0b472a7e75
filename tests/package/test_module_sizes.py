"""A module is small enough to be read at one sitting."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 500


def test_no_module_is_longer_than_the_limit() -> None:
    paths = [path for folder in ("airflow_provider_microbatch", "tests") for path in (ROOT / folder).rglob("*.py")]
    lines = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in paths}
    too_long = {path: count for path, count in lines.items() if count > LIMIT}
    assert lines
    assert too_long == {}
