"""Signs of life: the newest counts, and who gave one knows whether it still does."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.leases import Leases
from airflow_provider_microbatch.stores.posix import PosixStore

KEY = BatchKey("live", 0)


def expire(root: Path) -> None:
    for path in (root / "live").iterdir():
        os.utime(path, (1, 1))


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "live").iterdir())


def test_a_renewal_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    leases = Leases(PosixStore(tmp_path))
    assert leases.begin(KEY, 1)
    for number in (2, 3):
        expire(tmp_path)
        assert leases.remaining_seconds(KEY, 1) == 0
        leases.renew(KEY, 1)
        assert leases.remaining_seconds(KEY, 1) > 50
        assert names(tmp_path) == [f"0-1-{number}"]
    leases.renew(KEY, 1, seconds=3600, parked=True)
    assert leases.remaining_seconds(KEY, 1) == 0
    assert leases.remaining_seconds(KEY, 1, parked=True) > 3500


def test_a_lease_that_was_begun_just_now_is_not_renewed_and_any_other_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases, later = Leases(PosixStore(tmp_path)), Leases(PosixStore(tmp_path))
    assert leases.begin(KEY, 1)
    leases.confirm(KEY, 1)
    assert names(tmp_path) == ["0-1-1"]
    assert not later.begin(KEY, 1), "it is the first process's"
    expire(tmp_path)
    later.confirm(KEY, 1)
    assert names(tmp_path) == ["0-1-2"]
    assert later.remaining_seconds(KEY, 1) > 50
    assert later.begin(KEY, 2)
    slept = time.clock_gettime(time.CLOCK_BOOTTIME) + 50
    monkeypatch.setattr(time, "clock_gettime", lambda _: slept)
    later.confirm(KEY, 2)
    assert names(tmp_path) == ["0-1-2", "0-2-2"]


def test_one_that_is_gone_by_then_is_renewed_though_no_clock_of_the_machine_went_on(tmp_path: Path) -> None:
    """A hypervisor had paused it, and the janitor found an epoch that nobody had taken."""
    leases = Leases(PosixStore(tmp_path))
    leases.begin(KEY, 1)
    Leases(PosixStore(tmp_path)).forget(KEY, 1)
    leases.confirm(KEY, 1)
    assert leases.unfinished() == [(KEY, 1)]
    assert leases.remaining_seconds(KEY, 1) > 50


def test_what_killed_renewals_have_left_goes_with_the_next_one(tmp_path: Path) -> None:
    leases = Leases(PosixStore(tmp_path))
    leases.begin(KEY, 1)
    (tmp_path / "live" / "0-1-2").write_bytes((tmp_path / "live" / "0-1-1").read_bytes())
    leases.renew(KEY, 1)
    assert names(tmp_path) == ["0-1-3"]


def test_a_renewal_of_the_same_number_by_another_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    """Numbers come again where a backup was restored."""
    leases = Leases(PosixStore(tmp_path))
    sign = leases.renew(KEY, 1, token="a")
    assert leases.is_there(KEY, 1, sign, token="a")
    leases.forget(KEY, 1)
    assert leases.renew(KEY, 1, token="b") == sign
    assert not leases.is_there(KEY, 1, sign, token="a")
