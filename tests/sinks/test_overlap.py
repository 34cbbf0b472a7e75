"""Two sinks of one table are found among many, however the table's path is spelled."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch import FileSink
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.overlap import first_overlap

PATHS = ("a", "a/b", "a/_b", "a/b/c", "a b", "a%20b", "link", "link/b", "b", "b/../a", "a/", "a/.b/c")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("lake")
    (made / "a" / "b").mkdir(parents=True)
    (made / "link").symlink_to(made / "a")
    return made


def by_every_pair(sinks: dict[str, Sink]) -> tuple[str, str] | None:
    for (name, one), (second, other) in combinations(sinks.items(), 2):
        shown = one.would_show(other.location()) or other.would_show(one.location())
        if one.is_same_place(other) or other.is_same_place(one) or shown:
            return name, second
    return None


@given(
    chosen=st.lists(
        st.tuples(st.sampled_from(PATHS), st.sampled_from((FileSink, DeltaSink)), st.sampled_from(("", "file://"))),
        max_size=6,
    )
)
def test_a_look_at_few_pairs_finds_what_a_look_at_every_pair_does(
    folder: Path, chosen: list[tuple[str, type[FileSink] | type[DeltaSink], str]]
) -> None:
    made: dict[str, Sink] = {}
    for number, (path, kind, scheme) in enumerate(chosen):
        try:
            made[f"t{number}"] = kind(f"{scheme}{folder}/{path}")
        except DefinitionError:  # a spelling that the sink refuses is none of a table
            continue
    assert first_overlap(made) == by_every_pair(made)
