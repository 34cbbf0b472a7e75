"""Which files a path means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.file.listing import Listing


def found(listing: Listing, root: Path) -> list[str]:
    return sorted(os.path.relpath(file.path, root) for file in listing.files(lambda paths: paths))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in [
        "a.json",
        "b.csv",
        "_hidden.json",
        ".hidden.json",
        "c.json._COPYING_",
        "_k=1.json",
        "sub/d.json",
        "sub/deep/e.json",
        "sub/_staging/f.json",
        "day=1/g.json",
        "day=1/hour=2/h.json",
        "_temporary/i.json",
        "_day=1/j.json",
    ]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return tmp_path


def test_a_folder_means_its_files_and_its_partitions(tree: Path) -> None:
    expected = ["_day=1/j.json", "_k=1.json", "a.json", "b.csv", "day=1/g.json", "day=1/hour=2/h.json"]
    assert found(Listing(str(tree)), tree) == expected


def test_recursive_means_every_folder_that_is_not_hidden(tree: Path) -> None:
    added = {"sub/d.json", "sub/deep/e.json"}
    assert set(found(Listing(str(tree), recursive=True), tree)) - set(found(Listing(str(tree)), tree)) == added


def test_a_single_file_is_a_path(tree: Path) -> None:
    assert found(Listing(str(tree / "a.json")), tree) == ["a.json"]


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("*.json", ["_k=1.json", "a.json"]),
        ("{a,b}.*", ["a.json", "b.csv"]),
        ("{a.json,sub/d.json}", ["a.json", "sub/d.json"]),
        ("s*", ["sub/d.json"]),
        ("*/*.json", ["_day=1/j.json", "day=1/g.json", "sub/d.json"]),
        ("day=*", ["day=1/g.json", "day=1/hour=2/h.json"]),
        ("day=[0-9]/hour=?/*.json", ["day=1/hour=2/h.json"]),
        ("sub/*/*.json", ["sub/deep/e.json"]),
    ],
)
def test_globs_reach_files_and_folders_but_no_hidden_ones(tree: Path, glob: str, expected: list[str]) -> None:
    assert found(Listing(f"{tree}/{glob}"), tree) == expected


def test_overlapping_patterns_list_a_file_once(tree: Path) -> None:
    assert found(Listing(f"{tree}/{{day=1,day=*,*}}"), tree).count("day=1/g.json") == 1


def test_file_name_pattern_is_about_names_only(tree: Path) -> None:
    assert found(Listing(str(tree), file_name_pattern="{g,h}.json"), tree) == ["day=1/g.json", "day=1/hour=2/h.json"]


def test_names_with_glob_characters_are_found_as_they_are(tmp_path: Path) -> None:
    names = ["a[1].json", "a{1}.json", "a*.json", "a?.json", "a 1%20é.json"]
    for name in names:
        (tmp_path / name).write_text("x")
    assert found(Listing(str(tmp_path)), tmp_path) == sorted(names)


def test_a_folder_name_with_glob_characters_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "in[1]").mkdir()
    (tmp_path / "in[1]" / "a.json").write_text("x")
    listing = Listing(f"{tmp_path}/in\\[1\\]")
    assert found(listing, tmp_path) == ["in[1]/a.json"]
    assert listing.base == f"{tmp_path}/in[1]"


def test_links_are_followed_but_not_in_circles_and_broken_ones_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.json").write_text("x")
    (tmp_path / "in" / "linked").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "circle").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "broken.json").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "in" / "pipe")
    assert found(Listing(str(tmp_path / "in"), recursive=True), tmp_path / "in") == ["linked/a.json"]


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"{tmp_path}/gone.*does not exist"):
        found(Listing(f"{tmp_path}/gone"), tmp_path)
    with pytest.raises(SourceError, match=f"{tmp_path}/gone.*does not exist"):
        found(Listing(f"{tmp_path}/gone/*"), tmp_path)


def test_only_wanted_files_are_looked_at(tree: Path) -> None:
    wanted = str(tree / "a.json")
    assert [
        file.path for file in Listing(str(tree)).files(lambda paths: [path for path in paths if path == wanted])
    ] == [wanted]
