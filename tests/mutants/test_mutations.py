"""The list of mutations fits the code and the tests it names; ``make mutants`` runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mutants.__main__ import CAUGHT, TOP
from tests.mutants.mutation import PACKAGE
from tests.mutants.mutations import MUTATIONS


@pytest.mark.parametrize("file", sorted({mutation.file for mutation in MUTATIONS}))
def test_a_mutation_changes_the_code_and_leaves_it_python(file: str, tmp_path: Path) -> None:
    """All those of one file: a test each would be a sixth of all tests."""
    text, copy = (TOP / PACKAGE / file).read_text(), tmp_path / PACKAGE / file
    copy.parent.mkdir(parents=True)
    for mutation in MUTATIONS:
        if mutation.file == file:
            copy.write_text(text)
            mutation.apply(tmp_path)
            assert all((TOP / test).is_file() for test in mutation.tests), mutation.name


def test_names_are_unique_and_what_caught_them_is_known_of_no_others() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names)
    assert set(json.loads(CAUGHT.read_text())) <= set(names)
