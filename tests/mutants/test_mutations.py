"""The list of mutations fits the code and the tests it names; ``make mutants`` runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mutants.__main__ import CAUGHT, TOP
from tests.mutants.mutation import PACKAGE, Mutation
from tests.mutants.mutations import MUTATIONS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_a_mutation_changes_the_code_and_leaves_it_python(mutation: Mutation, tmp_path: Path) -> None:
    file = Path(PACKAGE, mutation.file)
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text((TOP / file).read_text())
    mutation.apply(tmp_path)
    assert all((TOP / test).is_file() for test in mutation.tests)


def test_names_are_unique_and_what_caught_them_is_known_of_no_others() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names)
    assert set(json.loads(CAUGHT.read_text())) <= set(names)
