"""A draft is a store like any other, and what lies below it is never written to."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.commands.draft import Draft

PATHS = ("metadata", "offsets/0", "offsets/1", "lanes/a/offsets/0")
FOLDERS = ("", "offsets", "lanes", "lanes/a", "lanes/a/offsets", "nothing")
changes = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "delete if"]), st.sampled_from(PATHS), st.binary(max_size=2)),
    max_size=8,
)


def change(store: Store, name: str, path: str, data: bytes) -> bool:
    if name == "put":
        return store.put_if_absent(path, data)
    return store.delete(path) if name == "delete" else store.delete_if(path, data)


@settings(max_examples=60, deadline=None)
@given(before=changes, drafted=changes)
def test_it_answers_as_the_store_would(
    before: list[tuple[str, str, bytes]], drafted: list[tuple[str, str, bytes]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        real, below = open_store(f"{folder}/real"), open_store(f"{folder}/below")
        for name, path, data in before:
            for store in (real, below):
                change(store, name, path, data)
        files = {path: path.read_bytes() for path in Path(folder, "below").rglob("*") if path.is_file()}
        draft = Draft(below)
        for name, path, data in drafted:
            top, _, rest = path.rpartition("/")
            seen = draft.scoped(top) if top else draft
            assert change(seen, name, rest, data) == change(real, name, path, data)
        for path in PATHS:
            assert draft.get(path) == real.get(path)
            assert (draft.modified_ms(path) is None) == (real.modified_ms(path) is None)
        for path in FOLDERS:
            assert sorted(draft.list(path)) == sorted(real.list(path))
            assert sorted(draft.folders(path)) == sorted(real.folders(path))
        assert {path: path.read_bytes() for path in Path(folder, "below").rglob("*") if path.is_file()} == files
