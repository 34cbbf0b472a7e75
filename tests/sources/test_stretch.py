"""Where a range of a table's stream ends, whatever the stream is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch.sources.delta.commits import File
from airflow_provider_microbatch.sources.delta.offset import Place
from airflow_provider_microbatch.sources.stretch import Limits, Refused, Stretch, between, end_of

sizes = st.lists(st.integers(1, 9), max_size=4)
histories = st.lists(st.tuples(sizes, st.booleans(), st.booleans()), min_size=1, max_size=8)


@given(histories, sizes, st.integers(1, 5), st.integers(1, 20), st.integers(0, 8))
def test_ranges_tile_the_stream_within_their_limits(
    history: list[tuple[list[int], bool, bool]], first: list[int], files: int, bytes: int, shut: int
) -> None:
    """Whatever there is, each file is in one range, in order, and no range has more than it may, but for one unit."""

    def stretch(version: int, sizes: list[int], **how: bool) -> Stretch[File]:
        return Stretch(
            version=version, files=tuple(File(path=f"{version}/{at}", size=n) for at, n in enumerate(sizes)), **how
        )

    whole = [stretch(3, first, in_snapshot=True)]
    whole += [
        stretch(version, sizes, is_one=one, is_other=other) for version, (sizes, one, other) in enumerate(history, 4)
    ]
    shown = [
        one if number < shut else Stretch(version=one.version, in_snapshot=one.in_snapshot, refused="shut")
        for number, one in enumerate(whole)
    ]
    limits = Limits(files=files, bytes=bytes)

    def after(at: Place) -> list[Stretch[File]]:
        return [one for one in shown if (one.version, one.in_snapshot) >= (at.version, at.in_snapshot)]

    at, found = Place(version=3, in_snapshot=True), list[str]()
    while True:
        try:
            end = end_of(at, after(at), limits)
        except Refused:
            assert shut < len(whole)
            break
        if end == at:
            assert shut >= len(whole)
            break
        parts = list(between(at, end, after(at)))
        taken = [file for part in parts for file in part.files]
        units = sum(1 if part.is_one else len(part.files) for part in parts if part.files)
        assert taken
        assert limits.allow(taken) or units == 1
        assert not any(part.is_other for part in parts[1:] if part.files and parts[0].files)
        assert end.order > at.order
        assert Place.of(end.text()) == end
        found += [file.path for file in taken]
        at = end
    assert found == [file.path for one in whole[:shut] for file in one.files]
