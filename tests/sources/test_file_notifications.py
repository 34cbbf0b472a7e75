"""A bucket that tells a queue of what lands: plans look at what it names, on a real API of S3 and SQS. A message may be
lost, late, doubled, or of another object, and its receiver may die: each object is planned once all the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.known_tables import TABLE_MARK
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.sources import SourceContext
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.log import SourceLog
from airflow_provider_microbatch.sources.file.notifications import hints, queue
from airflow_provider_microbatch.upkeep.commands.draft import Draft
from tests.sources.notified import Notified, call_of
from tests.sources.support import World
from tests.support.faulty_proxy import error
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # tables, services or worlds that live long

HOUR_MS = 3_600_000


@pytest.fixture
def told(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notified]:
    told = Notified(world)
    told.proxy.start()
    monkeypatch.setattr(connections, "_found_by", [told.connection])
    monkeypatch.setattr(queue, "_WAIT_SECONDS", 0)
    monkeypatch.setattr(hints, "_LISTED", {})
    with lifetime():  # a client for each question would take most of the time
        yield told
    told.proxy.stop()


def test_what_lands_is_planned_by_its_message_and_nothing_is_listed(told: Notified) -> None:
    told.land("before.json")
    told.switch_on()
    assert told.plan() == ["before.json"]
    told.land("a b+c%.json")
    told.land("dt=1/b.json")
    told.land("_hidden.json")
    told.asked()
    assert told.plan() == ["a b+c%.json", "dt=1/b.json"]
    assert told.asked()["list"] == 0
    assert told.waiting() == 0
    assert told.plan() == []
    assert told.asked().keys() - {"head"} == {"GetQueueAttributes"}


def test_a_sensor_takes_no_message_and_lists_nothing_while_there_is_none(told: Notified) -> None:
    told.switch_on()
    told.land("a.json")
    assert told.plan() == ["a.json"]
    told.asked()
    assert not told.sees()
    assert told.asked().keys() - {"head"} == {"GetQueueAttributes"}
    told.land("b.json")
    for _ in range(2):
        assert told.sees()
    assert told.waiting() == 1
    assert told.plan() == ["b.json"]


def test_a_sensor_lists_once_for_messages_of_what_was_planned_and_the_next_plan_deletes_them(told: Notified) -> None:
    told.switch_on()
    told.land("a.json")
    assert told.plan() == ["a.json"]
    told.say("a.json")
    told.asked()
    assert [told.sees() for _ in range(3)] == [False] * 3
    assert told.asked()["list"] == 1
    assert told.plan() == []
    assert told.waiting() == 0


def test_a_message_that_was_lost_costs_time_and_no_file(told: Notified) -> None:
    told.switch_on()
    told.land("a.json")
    assert told.plan() == ["a.json"]
    told.land("b.json")
    told.lose()
    assert not told.sees()
    assert told.plan() == []
    told.world.now_ms += HOUR_MS
    assert told.sees()
    assert told.plan() == ["b.json"]


def test_what_a_sensor_found_beside_messages_of_nothing_new_is_planned(told: Notified) -> None:
    told.switch_on()
    told.land("a.json")
    assert told.plan() == ["a.json"]
    told.land("b.json")
    told.lose()
    told.say("a.json")
    assert told.sees()
    assert told.plan() == ["b.json"]


def test_a_plan_that_dies_before_its_entry_leaves_its_messages_to_the_next(
    told: Notified, monkeypatch: pytest.MonkeyPatch
) -> None:
    told.switch_on()
    told.land("a.json")
    assert told.plan() == ["a.json"]
    told.land("b.json")
    monkeypatch.setattr(queue, "HIDDEN_SECONDS", 1)
    with monkeypatch.context() as dies:
        dies.setattr(SourceLog, "add", _dies)
        dies.setattr(hints.Hints, "give_back", _dies)
        with pytest.raises(_DiedError):
            told.plan()
    assert told.waiting() == 1
    wait_until(told.sees)
    assert told.plan() == ["b.json"]
    assert told.waiting() == 0


def test_a_plan_that_dies_behind_its_entry_is_used_and_its_messages_do_no_harm(
    told: Notified, monkeypatch: pytest.MonkeyPatch
) -> None:
    told.switch_on()
    told.land("a.json")
    assert told.plan() == ["a.json"]
    told.land("b.json")
    with monkeypatch.context() as dies:
        dies.setattr(queue.Queue, "delete", _dies)
        with pytest.raises(_DiedError):
            told.plan()
    assert told.sees()
    assert told.plan() == ["b.json"]
    told.say("b.json")
    assert told.plan() == []


class _DiedError(Exception):
    """The process died."""


def _dies(*_: object, **__: object) -> bool:
    raise _DiedError


def test_what_does_not_fit_into_a_batch_is_in_the_next_ones_without_a_listing(told: Notified) -> None:
    told.switch_on()
    told.land("0.json")
    assert told.plan(max_files=3) == ["0.json"]
    names = [f"{number}.json" for number in range(1, 8)]
    told.say(*names)  # one message of seven
    told.lose()
    for name in names:
        told.land(name)
    told.asked()
    batches = []
    while told.sees(max_files=3):
        batches.append(told.plan(max_files=3))
    assert sorted(name for batch in batches for name in batch) == names
    assert max(map(len, batches)) <= 3
    assert told.waiting() == 0


def test_a_message_of_many_files_comes_again_until_all_are_planned(told: Notified) -> None:
    told.land("0.json")
    assert told.plan(max_files=2) == ["0.json"]
    names = [f"{number}.json" for number in range(1, 6)]
    for name in names:
        told.land(name)
    told.say(*names)
    told.asked()
    batches = [told.plan(max_files=2) for _ in range(3)]
    assert batches == [["1.json", "2.json"], ["3.json", "4.json"], ["5.json"]]
    assert told.asked()["list"] == 0
    assert told.waiting() == 0


def test_a_backlog_that_one_batch_does_not_take_is_listed_until_it_is_read(told: Notified) -> None:
    for number in range(5):
        told.land(f"{number}.json")
    told.switch_on()
    assert [told.plan(max_files=2) for _ in range(4)] == [["0.json", "1.json"], ["2.json", "3.json"], ["4.json"], []]


def test_two_plans_at_once_share_an_entry_and_lose_no_message(told: Notified, monkeypatch: pytest.MonkeyPatch) -> None:
    told.switch_on()
    told.land("a.json")
    assert told.plan() == ["a.json"]
    told.land("b.json")
    told.land("c.json")
    real, left = SourceLog.add, [True]

    def beside(log: SourceLog, *given: Any, **named: Any) -> bool:
        if left:
            left.clear()
            told.lose()  # nothing is visible to the other one
            told.say("c.json")
            told.open(max_files=1).latest_offset(told.position)
        return real(log, *given, **named)

    monkeypatch.setattr(SourceLog, "add", beside)
    planned = told.plan() + told.plan() + told.plan()
    assert sorted(planned) == ["b.json", "c.json"]


def test_messages_of_others_are_left_and_named(told: Notified, caplog: pytest.LogCaptureFixture) -> None:
    told.land("a.json")
    assert told.plan() == ["a.json"]
    for body in ("hello", "[]", "7", '{"Records": []}', '{"Records": [{"s3": 5}]}', "[" * 100_000):
        told.send(body)
    told.say("a.json", bucket="another")
    assert told.plan() == []
    assert "7 message(s) that are no notifications" in caplog.text
    assert told.waiting() == 7


def test_names_that_no_source_may_ask_for_are_not_asked_for(told: Notified) -> None:
    told.land("a.json")
    assert told.plan() == ["a.json"]
    told.say("../../secrets.json", "x/../y.json", "", "/", "gone.json", ".hidden", "deep/er.json")
    told.say("a\nb.json", "\ud800.json", "a//b.json", "a\x7f.json", f"{'é' * 600}.json")
    told.asked()
    assert [told.plan(), told.plan()] == [[], []]
    heads = {one.key for one in told.proxy.asked if one.kind == "head"}
    assert heads <= {"landing", "landing/a.json", "landing/gone.json"}  # a listing asks for the first
    assert told.waiting() == 0


def test_a_name_that_the_bucket_refuses_has_all_listed(told: Notified) -> None:
    told.land("a.json")
    assert told.plan() == ["a.json"]
    told.say("odd.json")
    told.land("b.json")
    odd = error(400, "InvalidRequest")
    told.proxy.fail(lambda asked: asked.kind == "head" and "odd" in asked.key, lambda *_: odd, times=99)
    assert told.plan() == ["b.json"]


def test_beside_a_name_that_nobody_can_ask_for_all_is_listed(told: Notified) -> None:
    """It is of the source: only a listing tells whether it is there."""
    told.land("a.json")
    assert told.plan(recursive=True) == ["a.json"]
    told.land("b.json")
    told.land("c.json")
    told.say("b.json", "\x7f.json")
    assert told.plan(recursive=True) == ["b.json", "c.json"]


def test_a_sensor_that_found_nothing_in_an_empty_bucket_looks_again(told: Notified) -> None:
    """The message that the service sends to try the queue: the plan that deletes it leaves nothing else behind."""
    told.say()
    assert not told.sees()
    assert told.plan() == []
    told.land("a.json")
    told.say("a.json")
    assert told.sees()


def test_a_table_is_looked_for_as_soon_as_a_message_names_its_mark(told: Notified) -> None:
    told.switch_on()
    told.land("a.json")
    assert told.plan(recursive=True) == ["a.json"]
    told.say(f"table/{TABLE_MARK}")
    told.land("b.json")
    assert told.plan(recursive=True) == ["b.json"]
    told.land("table/c.json")
    told.land(f"table/{TABLE_MARK}")
    for _ in range(2):
        with pytest.raises(SourceError, match="is a table that a pipeline of this package writes"):
            told.plan(recursive=True)
    told.remove(f"table/{TABLE_MARK}")
    assert told.plan(recursive=True) == ["table/c.json"]
    assert told.waiting() == 0


def test_what_only_looks_takes_no_message(told: Notified) -> None:
    """`microbatch peek` plans on a draft, which is thrown away."""
    told.switch_on()
    told.land("a.json")
    assert told.plan() == ["a.json"]
    told.land("b.json")
    draft = Draft(told.world.state)
    context = SourceContext(name="orders", log=Draft(told.world.log), state=draft, clock_ms=lambda: told.world.now_ms)
    looked = FileSource(f"s3://lake@{told.name}/landing", schema="id long", packages=[], notifications=told.address)
    assert looked.open(context).latest_offset(told.position) == '{"logOffset":1}'
    assert told.waiting() == 1
    assert told.plan() == ["b.json"]


def test_a_sensor_takes_no_new_message_for_an_old_one(told: Notified) -> None:
    told.switch_on()
    told.land("a.json")
    assert told.plan() == ["a.json"]
    told.say("a.json")
    assert not told.sees()
    told.land("b.json")
    assert told.plan() == ["b.json"], "by its schedule, without a sensor"
    told.land("c.json")
    assert told.sees(), "one message waits, as then"


def test_a_message_that_went_while_another_came_hides_nothing(told: Notified) -> None:
    told.switch_on()
    told.land("a.json")
    assert told.plan() == ["a.json"]
    told.say("a.json")
    assert not told.sees()
    told.lose()
    assert not told.sees()
    told.land("b.json")
    assert told.sees()


def test_a_plan_that_fails_gives_its_messages_back(told: Notified, monkeypatch: pytest.MonkeyPatch) -> None:
    told.switch_on()
    told.land("a.json")
    assert told.plan() == ["a.json"]
    told.land("b.json")
    with monkeypatch.context() as fails:
        fails.setattr(SourceLog, "add", _dies)
        with pytest.raises(_DiedError):
            told.plan()
    assert told.plan() == ["b.json"]


def test_where_more_messages_wait_than_are_received_the_oldest_files_go_first(
    told: Notified, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "_MOST", 2)
    told.switch_on()
    told.land("0.json")
    assert told.plan(max_files=1) == ["0.json"]
    names = [f"{number}.json" for number in range(1, 5)]
    for name in names:
        told.land(name)
    told.lose()
    told.say("4.json")
    told.say("3.json")
    told.say("2.json")
    assert told.plan(max_files=1) == ["1.json"]


def test_what_a_listing_has_left_is_in_the_next_batches(told: Notified) -> None:
    told.switch_on()
    told.land("a.json")
    assert told.plan(max_files=1) == ["a.json"]
    for name in ("b.json", "c.json", "d.json"):
        told.land(name)
    told.lose()
    told.say("a.json")
    assert [told.plan(max_files=1) for _ in range(3)] == [["b.json"], ["c.json"], ["d.json"]]


def test_also_where_nothing_is_ever_to_be_listed_again(told: Notified) -> None:
    """Files of before the notifications: no message names them."""
    for name in ("a.json", "b.json", "c.json"):
        told.land(name)
    plans = [told.plan(max_files=1, full_listing_seconds=10**10) for _ in range(4)]
    assert plans == [["a.json"], ["b.json"], ["c.json"], []]


def test_while_the_queue_is_away_all_is_listed(told: Notified, caplog: pytest.LogCaptureFixture) -> None:
    told.switch_on()
    told.land("a.json")
    assert told.plan() == ["a.json"]
    told.land("b.json")
    down = error(503, "ServiceUnavailable")
    told.proxy.fail(lambda asked: call_of(asked) in ("GetQueueUrl", "GetQueueAttributes"), lambda *_: down, times=99)
    assert told.sees()
    assert told.plan() == ["b.json"]
    assert "does not answer, so all files are listed" in caplog.text


def test_a_queue_that_is_not_there_is_named_with_what_to_do(told: Notified) -> None:
    for ask in (told.sees, told.plan):
        with pytest.raises(
            SourceError, match=r"source 'orders': sqs://lake/none refuses connection 'lake'.*Create the"
        ):
            ask(notifications="sqs://lake/none")


def test_a_restored_checkpoint_lists(told: Notified) -> None:
    told.switch_on()
    told.land("a.json")
    assert told.plan() == ["a.json"]
    told.land("b.json")
    assert told.plan() == ["b.json"]
    source = told.open()
    source.forget_after(first := '{"logOffset":0}')
    told.position = first
    assert told.plan() == ["b.json"]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_becomes_of_messages_each_file_is_planned_once(told: Notified, seed: int) -> None:
    chance = random.Random(seed)
    told.switch_on()
    landed: list[str] = []
    planned: list[str] = []
    for _ in range(12):
        for _ in range(chance.randrange(4)):
            name = f"{chance.randrange(1_000_000)}-{len(landed)}.json"
            told.land(name)
            landed.append(name)
        move = chance.randrange(6)
        if move == 0:
            told.lose()
        elif move == 1 and landed:
            told.say(chance.choice(landed))
        elif move == 2:
            told.world.now_ms += HOUR_MS
        elif move == 3:
            told.say("never.json")
        elif move == 4:
            told.send("hello")
        fires = told.sees(max_files=3)
        batch = told.plan(max_files=3) if fires or chance.random() < 0.3 else []
        assert batch or not fires, "what fires can be planned"
        planned += batch
    told.world.now_ms += HOUR_MS
    while batch := told.plan(max_files=3):
        planned += batch
    assert sorted(planned) == sorted(landed)


@pytest.mark.parametrize("data", ["[]", '{"full_ms": "0", "log_id": 0, "seal": "", "selects": {}}', "[" * 100_000])
def test_a_record_of_another_kind_costs_a_listing(told: Notified, data: str) -> None:
    told.switch_on()
    told.land("a.json")
    assert told.plan() == ["a.json"]
    for name in told.world.state.list(hints.NOTIFIED):
        told.world.state.delete(f"{hints.NOTIFIED}/{name}")
        assert told.world.state.put_if_absent(f"{hints.NOTIFIED}/{name}", data.encode())
    told.land("b.json")
    assert told.plan() == ["b.json"]
