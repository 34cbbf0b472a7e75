"""A slot whose server is another one, or was restored: noticed, and no way on that loses changes is offered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.runtime.slot import connect, lsn_of
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.intervals import CommittedRange
from airflow_provider_microbatch.sources.jdbc.cluster import Cluster
from airflow_provider_microbatch.sources.slot import server
from airflow_provider_microbatch.sources.slot.letting_go import LettingGo
from airflow_provider_microbatch.sources.slot.offset import Place
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.support.slot_table import SlotTable, slot_table

pytestmark = pytest.mark.slow
INSERT = "INSERT INTO orders (note) VALUES ('x')"
ELSEWHERE = Cluster(system=42, timeline=1)


@pytest.fixture
def table() -> Iterator[SlotTable]:
    with slot_table() as found:
        yield found


@pytest.fixture
def opened(table: SlotTable, tmp_path: Path) -> Callable[..., OpenSource]:
    return table.opener(tmp_path)


def next_end(table: SlotTable, source: OpenSource, position: str | None = None) -> Place:
    table.execute(INSERT)
    return Place.of(source.latest_offset(position) or "")


def test_a_log_that_does_not_have_the_transaction_that_was_read_last_is_another_one(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    source = opened()
    read = next_end(table, source)
    then = next_end(table, source, read.text())
    assert source.has_new(read.text()), "the slot stays behind what is set aside"
    restored = replace(then, lsn=then.lsn - 8).text()
    for ask in (source.has_new, source.latest_offset):
        with pytest.raises(SourceError, match=r"restored from a backup.*new checkpoint and a new table") as error:
            ask(restored)
        assert "set-offset" not in str(error.value), "what it tells now comes before what is in the table"
    assert not source.has_new(replace(then, lsn=then.lsn - 8, changes=0).text()), "a batch without rows ends anywhere"


def test_a_server_with_smaller_places_offers_no_way_on_that_a_merge_would_lose_all_changes_by(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    source = opened()
    end = next_end(table, source)
    for position in (replace(end, lsn=0xFF << 32, cluster=ELSEWHERE), replace(end, lsn=0xFF << 32)):
        with pytest.raises(SourceError, match=r"_lsn.*merge.*new checkpoint and a new table") as error:
            source.latest_offset(position.text())
        assert "set-offset" not in str(error.value)
    with pytest.raises(SourceError, match=r"another database cluster.*set-offset"):
        source.latest_offset(replace(end, lsn=1, cluster=ELSEWHERE).text())


def test_what_nobody_has_counted_is_told_in_bytes(table: SlotTable, opened: Callable[..., OpenSource]) -> None:
    """`set-offset` names what it skips or goes back over: the end that a person gives it has no count, and that of a
    batch no other than its own."""
    source = opened()
    end = next_end(table, source)
    assert source.in_words(None, end.text()) == {"changes": 1}
    by_hand = Place(lsn=end.lsn + 1_000).text()
    assert source.between_in_words(end.text(), by_hand) == {"bytes of the log": 1_000}
    before = Place(lsn=end.lsn - 1_000).text()
    assert source.between_in_words(before, end.text()) == {"bytes of the log": 1_000}
    assert source.between_in_words(None, end.text()) == {}, "where the log begins for the source nobody knows"


def test_a_note_of_a_place_in_another_log_holds_up_no_batch_of_this_one(
    table: SlotTable, opened: Callable[..., OpenSource], tmp_path: Path
) -> None:
    source, store = opened(), PosixStore(tmp_path / "checkpoint")
    first = next_end(table, source)
    second = next_end(table, source, first.text())
    notes = LettingGo(store)
    notes.say(second.lsn, ELSEWHERE)  # and then its process died
    notes.say(0xFF << 32, second.cluster)  # of the time before the server was restored
    store.put_if_absent("letting_go/left-by-a-copy", b"")
    assert source.not_replayable(None, first.text()) is None
    notes.say(second.lsn, second.cluster)
    assert "has moved on" in str(source.not_replayable(None, first.text()))
    ranges = [CommittedRange(start=None, end=second.text(), is_read=True)]
    opened({"committed": lambda _: iter(ranges)}).commit(second.text())
    assert store.list("letting_go") == ["left-by-a-copy"], (
        "what this log has reached is forgotten, and what is another's"
    )


def test_a_key_that_spark_could_not_open_is_refused_before_a_plan(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    locked = replace(table.orders.connection, extra={"sslkey": "/key.pem", "sslpassword": "secret"})
    with pytest.raises(SourceError, match=r"sslpassword.*key without a password") as error:
        opened({"connect": lambda _: locked}).check()
    assert "secret" not in str(error.value)


def test_a_slot_that_gives_prepared_transactions_apart_is_refused(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    table.drop_slot()
    table.one("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)::text", table.slot)
    table.execute(INSERT)
    for ask in (lambda: opened().has_new(None), lambda: opened().latest_offset(None)):
        with pytest.raises(SourceError, match=r"made with two_phase.*make it anew without"):
            ask()


def test_a_slot_that_is_read_goes_on_with_two_phase_for_as_long_as_nothing_is_prepared(
    table: SlotTable, opened: Callable[..., OpenSource], caplog: pytest.LogCaptureFixture
) -> None:
    """Made anew at once, it would lose what is not read."""
    table.drop_slot()
    table.one("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)::text", table.slot)
    read = Place(lsn=lsn_of(table.moved_to())).text()
    table.execute(INSERT)
    opened().check()
    assert opened().has_new(read)
    assert not caplog.records
    assert Place.of(opened().latest_offset(read) or "").changes == 1
    (warned,) = caplog.messages
    assert "made with two_phase" in warned
    assert "stop the writers" in warned
    table.drop_slot()
    table.make_slot()
    with pytest.raises(SourceError, match=r"has moved on.*microbatch set-offset"):
        opened().latest_offset(read)


def test_a_plan_passes_over_no_message_that_its_reader_would_refuse(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    table.execute(INSERT)
    found = server.peek
    monkeypatch.setattr(server, "peek", lambda *given, **how: [*found(*given, **how), (b"P\0\0\0\0",)])
    with pytest.raises(SourceError, match=r"'orders': .*message of the kind 'P'.*two_phase"):
        opened().latest_offset(None)


def test_as_many_changes_as_anybody_allows_are_planned(table: SlotTable, opened: Callable[..., OpenSource]) -> None:
    assert next_end(table, opened(max_changes=2**31)).changes == 1


def test_a_role_whose_statements_are_limited_reads_for_as_long_as_it_takes(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    table.execute(INSERT)
    arguments = opened().read(None, opened().latest_offset(None)).arguments
    table.execute("ALTER ROLE CURRENT_USER SET statement_timeout = '50s'")
    try:
        with connect(arguments["connection"], "") as session:
            assert session.execute("SHOW statement_timeout").fetchone() == ("0",)
            assert session.info.get_parameters()["keepalives_idle"] == "30", "a network forgets who says nothing"
    finally:
        table.execute("ALTER ROLE CURRENT_USER RESET statement_timeout")
