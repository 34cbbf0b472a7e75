"""Paths in Spark's encoding, and Hadoop's globs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.file.path import (
    check_readable,
    component_regex,
    expand_braces,
    from_url,
    literal_prefix,
    local_path,
    to_url,
)

NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="/\0"), min_size=1)


@given(NAMES)
def test_every_name_comes_back_from_the_log(name: str) -> None:
    path = f"/landing/{name}"
    url = to_url(path)
    assert from_url(url) == path
    assert "\n" not in url


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("/l/a b.json", "file:///l/a%20b.json"),
        ("/l/c%20d.json", "file:///l/c%2520d.json"),
        ("/l/é+ü.json", "file:///l/é+ü.json"),
        ("/l/d=1/a:b@c&d$e,f;g~h'i(j)!.json", "file:///l/d=1/a:b@c&d$e,f;g~h'i(j)!.json"),
        ('/l/[x]{y}?#|^`"<>\\.json', "file:///l/%5Bx%5D%7By%7D%3F%23%7C%5E%60%22%3C%3E%5C.json"),
        ("/l/a\u00a0b\u3000c", "file:///l/a%C2%A0b%E3%80%80c"),
        ("/l/a\nb", "file:///l/a%0Ab"),
        ("/l/😀", "file:///l/😀"),
    ],
)
def test_the_encoding_is_the_one_of_javas_uri(path: str, url: str) -> None:
    assert to_url(path) == url


def test_names_that_spark_cannot_read_are_named() -> None:
    with pytest.raises(SourceError, match=r"b'/landing/\\xff'.*UTF-8.*Rename"):
        check_readable(b"/landing/\xff".decode(errors="surrogateescape"))
    with pytest.raises(SourceError, match=r"'/landing/10:00.json' has a colon.*Rename"):
        check_readable("/landing/10:00.json")
    check_readable("/landing/at=10:00/a b%[1]é.json")


def test_a_log_of_another_file_system_is_refused() -> None:
    with pytest.raises(SourceError, match="hdfs"):
        from_url("hdfs://namenode/landing/a.json")


@pytest.mark.parametrize(
    "written", ["/landing/in", "/landing/in/", "file:/landing/in", "file:///landing/in/", "/landing//x/../in"]
)
def test_spellings_of_one_path_are_one(written: str) -> None:
    assert local_path(written, field="path") == "/landing/in"


@pytest.mark.parametrize(
    ("path", "prefix"),
    [
        ("/landing/in", "/landing/in"),
        ("/landing/*/in", "/landing"),
        ("/landing/in/a?.json", "/landing/in"),
        ("/landing/{a,b}/in", "/landing"),
        (r"/landing/\[a\]/*", "/landing/[a]"),
        ("/*", "/"),
    ],
)
def test_the_prefix_ends_before_the_first_glob(path: str, prefix: str) -> None:
    assert literal_prefix(path) == prefix


def test_braces_nest_and_escape() -> None:
    assert expand_braces("/x/{a,b{1,2}}/{c,c}") == ["/x/a/c", "/x/b1/c", "/x/b2/c"]
    assert expand_braces(r"/x/\{a,b\}") == [r"/x/\{a,b\}"]


@pytest.mark.parametrize(
    ("glob", "matches", "others"),
    [
        ("*.json", ["a.json", ".json"], ["a.jsonl", "json"]),
        ("a?c", ["abc"], ["ac", "abbc"]),
        ("[a-c]1", ["a1", "c1"], ["d1", "-1"]),
        ("[^a-c]1", ["d1"], ["a1"]),
        ("[!a]", ["b"], ["a"]),
        (r"\*", ["*"], ["a"]),
        ("a.b", ["a.b"], ["axb"]),
        ("a+(b)", ["a+(b)"], ["aab"]),
    ],
)
def test_globs_are_hadoops(glob: str, matches: list[str], others: list[str]) -> None:
    regex = component_regex(glob)
    assert all(regex.fullmatch(name) for name in matches)
    assert not any(regex.fullmatch(name) for name in others)
