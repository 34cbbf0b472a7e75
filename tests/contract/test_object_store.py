"""An object store on bad days: a proxy before the service throttles, loses answers, cuts bodies, refuses. Nothing is
lost or doubled, and an error says what is wrong, where, and what to do."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores import object_store as store_of_objects
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.stores.object_store import bucket
from tests.contract.registered import FIXTURE, registered
from tests.execution.world import World
from tests.support import object_store
from tests.support.faulty_proxy import (
    Answer,
    Asked,
    FaultyProxy,
    Forward,
    busy,
    done_but_failed,
    done_but_lost,
    entry,
    error,
    lost,
    truncated,
)
from tests.support.object_services import KEY, SECRET, SERVICES, TOKEN, Service, s3_connection

system_name = registered(SERVICES)
of_s3 = pytest.mark.parametrize(FIXTURE, ["s3"])
pytestmark = [pytest.mark.usefixtures("system_name"), pytest.mark.slow]

CONN_ID = "lake"


@pytest.fixture
def service(system_name: str) -> Service:
    return SERVICES[system_name]


@pytest.fixture
def proxy(service: Service) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(service.endpoint(), above=service.above)
    proxy.start()
    yield proxy
    proxy.stop()


@pytest.fixture
def found(service: Service, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> dict[str, Connection]:
    """Connections by id, as Airflow would find them."""
    found = {CONN_ID: service.connection(CONN_ID, proxy.url)}
    monkeypatch.setattr(connections, "_found_by", [found.__getitem__])
    # Nothing of the environment leads anywhere.
    for name in service.environment(""):
        monkeypatch.delenv(name)
    for name, value in service.elsewhere.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def location(service: Service, found: dict[str, Connection], tmp_path: Path) -> str:
    return f"{service.scheme}://{CONN_ID}@{service.bucket}{tmp_path}/checkpoint"


@pytest.fixture
def store(location: str) -> Store:
    return open_store(location)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "PATIENCE_SECONDS", 0.3)


@pytest.mark.parametrize("fault", [done_but_lost, done_but_failed, lost, busy])
def test_a_put_whose_answer_is_lost_is_ours_whether_it_was_done_or_not(
    store: Store, proxy: FaultyProxy, fault: Any
) -> None:
    proxy.fail(entry("offsets/0"), fault, times=3)
    assert store.put_if_absent("offsets/0", b"ours") is True
    assert store.get("offsets/0") == b"ours"
    assert store.put_if_absent("offsets/0", b"ours") is False, "once"


@pytest.mark.parametrize("fault", [done_but_lost, done_but_failed, lost, busy])
def test_and_another_writers_whose_equal_bytes_were_there_before(store: Store, proxy: FaultyProxy, fault: Any) -> None:
    assert store.put_if_absent("offsets/0", b"equal") is True
    proxy.fail(entry("offsets/0"), fault, times=2)
    assert store.put_if_absent("offsets/0", b"equal") is False


def test_and_another_writers_who_came_between_a_lost_put_and_its_repetition(store: Store, proxy: FaultyProxy) -> None:
    other = threading.local()

    def between(asked: Asked, forward: Forward) -> None:
        other.won = store.scoped("offsets").put_if_absent("0", b"equal")

    proxy.fail(entry("offsets/0"), between)
    mine = store.put_if_absent("offsets/0", b"equal")
    assert mine is False, "the other one was told that he had won"
    assert store.get("offsets/0") == b"equal"


def test_a_put_of_which_nobody_can_know_any_more_is_an_error(
    store: Store, proxy: FaultyProxy, service: Service
) -> None:
    def done_and_removed(asked: Asked, forward: Forward) -> Answer:
        forward()
        answer = forward()  # refused by the first
        service.delete(asked.key)
        return answer

    proxy.fail(entry("offsets/0"), lost)
    proxy.fail(entry("offsets/0"), done_and_removed)
    with pytest.raises(CheckpointError, match=r"nobody knows whether .*offsets/0 .*'microbatch'.*connection 'lake'"):
        store.put_if_absent("offsets/0", b"x")


def test_a_refusal_that_leaves_nothing_is_no_loss(store: Store, proxy: FaultyProxy) -> None:
    conflict = error(409, "ConditionalRequestConflict", "A conflicting operation occurred.")
    proxy.fail(entry("offsets/0"), lambda asked, forward: conflict, times=2)
    assert store.put_if_absent("offsets/0", b"x") is True


@pytest.mark.parametrize("fault", [done_but_lost, done_but_failed, lost, busy])
def test_a_replacement_whose_answer_is_lost_is_ours_whether_it_was_done_or_not(
    store: Store, proxy: FaultyProxy, fault: Any
) -> None:
    store.put_if_absent("count", b"1")
    read = store.get_versioned("count")
    assert read is not None
    proxy.fail(entry("count"), fault, times=2)
    version = store.compare_and_put("count", b"2", version=read.version)
    assert store.get_versioned("count") is not None
    assert version == store.get_versioned("count").version  # type: ignore[union-attr]
    assert store.compare_and_put("count", b"3", version=read.version) is None


def test_a_replacement_that_may_have_been_replaced_in_turn_is_an_error(
    store: Store, proxy: FaultyProxy, service: Service
) -> None:
    store.put_if_absent("count", b"1")
    read = store.get_versioned("count")
    assert read is not None

    def done_and_replaced(asked: Asked, forward: Forward) -> None:
        forward()
        service.put(asked.key, b"3")

    proxy.fail(entry("count"), done_and_replaced)
    with pytest.raises(CheckpointError, match="nobody knows"):
        store.compare_and_put("count", b"2", version=read.version)


def test_a_removal_that_is_sent_again_leaves_what_has_come_in_its_place(store: Store, proxy: FaultyProxy) -> None:
    store.put_if_absent("offsets/0", b"late")

    def done_and_followed(asked: Asked, forward: Forward) -> None:
        forward()
        store.put_if_absent("offsets/0", b"the next plan")

    proxy.fail(lambda asked: asked.kind == "delete", done_and_followed)
    store.delete_if("offsets/0", b"late")
    assert store.get("offsets/0") == b"the next plan"


@pytest.mark.parametrize("fault", [done_but_lost, done_but_failed, lost, busy])
def test_a_removal_whose_answer_is_lost_is_done(store: Store, proxy: FaultyProxy, fault: Any) -> None:
    store.put_if_absent("offsets/0", b"late")
    proxy.fail(lambda asked: asked.kind == "delete", fault, times=2)
    assert store.delete_if("offsets/0", b"late") is True
    assert store.get("offsets/0") is None
    assert store.delete_if("offsets/0", b"late") is False


@pytest.mark.parametrize("fault", [busy, lost, truncated])
def test_what_is_asked_of_a_service_that_stumbles_is_asked_again(store: Store, proxy: FaultyProxy, fault: Any) -> None:
    data = bytes(range(256)) * 64
    for number in range(3):
        store.put_if_absent(f"offsets/{number}", data)
    for kind in ("get", "list", "head", "delete"):
        proxy.fail(lambda asked, kind=kind: asked.kind == kind, fault, times=2)  # type: ignore[misc]
    assert store.get("offsets/0") == data
    assert store.list("offsets") == ["0", "1", "2"]
    assert store.modified_ms("offsets/1") is not None
    store.delete_many(["offsets/0", "offsets/1"])
    assert store.list("offsets") == ["2"]
    for kind in ("get", "list"):
        proxy.fail(lambda asked, kind=kind: asked.kind == kind, fault)  # type: ignore[misc]
    assert store.get_range("offsets/2", 10, 20) == data[10:30]
    assert store.list_after("offsets") == ["2"]


@of_s3
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("answer", "remedy"),
    [
        (error(404, "NoSuchBucket", "The specified bucket does not exist"), "no bucket 'microbatch': make it"),
        (error(403, "AccessDenied", "Access Denied"), "the rights to list bucket 'microbatch'"),
        (error(301, "PermanentRedirect", "Another endpoint."), "in another region"),
        (
            error(400, "AuthorizationHeaderMalformed", "the region 'us-east-1' is wrong; expecting 'eu-west-1'"),
            "expecting 'eu-west-1'.*in another region",
        ),
        (
            error(400, "ExpiredToken", "The provided token has expired.", more=f"<Token-0>{TOKEN}</Token-0>"),
            "has expired: renew it",
        ),
        (error(403, "RequestTimeTooSkewed", "The difference is too large."), "clock of this machine"),
        (
            error(403, "InvalidAccessKeyId", f"No {KEY}.", more=f"<AWSAccessKeyId>{KEY}</AWSAccessKeyId>"),
            "keys of connection 'lake'",
        ),
        (error(503, "SlowDown", "Please reduce your request rate."), "patience ran out"),
        (error(501, "NotImplemented", "A header you provided."), "conditional writes"),
    ],
    ids=lambda value: re.sub(r"\W", "", value.body.decode())[22:40] if isinstance(value, Answer) else "",
)
def test_what_goes_wrong_is_said_with_bucket_key_connection_and_remedy_and_without_secrets(
    store: Store, proxy: FaultyProxy, answer: Answer, remedy: str
) -> None:
    proxy.fail(lambda asked: True, lambda asked, forward: answer, times=1000)
    calls = {
        "write": lambda: store.put_if_absent("offsets/0", b"x"),
        "read": lambda: store.get("offsets/0"),
        "list": lambda: store.list("offsets"),
        "delete": lambda: store.delete_many(["offsets/0"]),
    }
    for doing, call in calls.items():
        with pytest.raises(
            CheckpointError, match=f"cannot {doing} .*'microbatch'.*connection 'lake'.*{remedy}"
        ) as told:
            call()
        said = str(told.value)
        assert not any(secret in said for secret in (KEY, SECRET, TOKEN)), said
        assert told.value.__suppress_context__, "what the library says holds secrets, and a traceback shows it"


@of_s3
def test_a_token_that_expires_meanwhile_is_asked_for_again(
    store: Store, proxy: FaultyProxy, found: dict[str, Connection]
) -> None:
    store.put_if_absent("offsets/0", b"x")
    expired = error(400, "ExpiredToken", "The provided token has expired.")
    proxy.fail(
        lambda asked: asked.headers.get("x-amz-security-token") == TOKEN, lambda asked, forward: expired, times=1000
    )
    found[CONN_ID] = s3_connection(CONN_ID, proxy.url, aws_session_token="a newer one")
    assert store.put_if_absent("offsets/1", b"x") is True
    assert store.get("offsets/0") == b"x"


@of_s3
def test_a_task_looks_a_connection_up_once_and_again_when_its_token_has_expired(
    location: str, proxy: FaultyProxy, found: dict[str, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def look_up(conn_id: str) -> Connection:
        asked.append(conn_id)
        return found[conn_id]

    monkeypatch.setattr(connections, "_found_by", [look_up])
    with lifetime():
        for place in ("checkpoint", "lake"):
            assert open_store(f"{location}/{place}").put_if_absent("0", b"x")
        assert asked == [CONN_ID]
        expired = error(400, "ExpiredToken", f"The provided token {TOKEN} has expired.")
        proxy.fail(
            lambda asked: asked.headers.get("x-amz-security-token") == TOKEN, lambda asked, forward: expired, times=1000
        )
        found[CONN_ID] = s3_connection(CONN_ID, proxy.url, aws_session_token="a newer one")
        for place in ("checkpoint", "lake"):
            assert open_store(f"{location}/{place}").get("0") == b"x"
        assert asked == [CONN_ID, CONN_ID]
    open_store(location).get("0")  # behind the task's end
    with lifetime():  # of a trigger, which may be there for weeks while a connection is edited
        for _ in range(2):
            with lifetime():
                open_store(location).get("0")
        assert len(asked) == 5, "what is opened behind a task's or a look's end is none of it"


def test_what_another_library_wrote_is_read_and_nobodys_put(store: Store, service: Service, tmp_path: Path) -> None:
    prefix = f"{str(tmp_path).strip('/')}/checkpoint"
    service.put(f"{prefix}/offsets/0", b"of Spark")
    service.put(f"{prefix}/offsets/", b"")
    assert store.get("offsets/0") == b"of Spark"
    assert store.put_if_absent("offsets/0", b"of Spark") is False
    assert store.list("offsets") == ["0"]
    assert store.list("") == ["offsets"]


def test_a_service_that_ignores_conditions_is_refused_at_the_first_put(store: Store, proxy: FaultyProxy) -> None:
    proxy.fail(lambda asked: True, lambda asked, forward: forward("if-none-match", "if-match"), times=1000)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"'microbatch' \(connection 'lake'\) .*If-None-Match.*Use a service"):
            store.put_if_absent("offsets/0", b"x")
    assert store.get("offsets/0") is None, "nothing was written"
    assert store.list("") == []


def test_and_one_that_replaces_whatever_is_there(store: Store, proxy: FaultyProxy) -> None:
    store.put_if_absent("count", b"1")
    read = store.get_versioned("count")
    assert read is not None
    proxy.fail(lambda asked: True, lambda asked, forward: forward("if-match"), times=1000)
    with pytest.raises(CheckpointError, match="If-Match"):
        store.compare_and_put("count", b"2", version=read.version)
    assert store.get("count") == b"1"


def test_the_trial_costs_one_request_of_each_process(store: Store, proxy: FaultyProxy, location: str) -> None:
    store.put_if_absent("offsets/0", b"x")
    later = open_store(location)
    with proxy.counted() as first:
        later.put_if_absent("offsets/1", b"x")
    with proxy.counted() as second:
        later.scoped("offsets").put_if_absent("2", b"x")
    assert (first.total(), second.total()) == (2, 1)


def test_a_forked_process_goes_on(store: Store) -> None:
    store.put_if_absent("offsets/0", b"x")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            taken = store.put_if_absent("offsets/0", b"y")
            status = 0 if not taken and store.put_if_absent("offsets/1", b"of the child") else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.get("offsets/1") == b"of the child"


def test_odd_names_are_kept_as_they_are(store: Store) -> None:
    odd = sorted(
        ["a b", "a%20b", "a%b", "é", "\U0001f600", "a:b+c", "x~y", "[x]{y}", "a#b?c", "a*b", 'a"b', "lane=2|3"]
    )
    for name in odd:
        assert store.put_if_absent(f"odd/{name}", name.encode()) is True
    assert store.list("odd") == odd
    assert list(store.list_after("odd")) == odd
    assert store.present("odd", odd) == set(odd)
    assert [store.get(f"odd/{name}") for name in odd] == [name.encode() for name in odd]
    store.delete_many(f"odd/{name}" for name in odd)
    assert store.list("odd") == []


def test_the_clock_is_the_services_and_asking_writes_nothing(store: Store, proxy: FaultyProxy) -> None:
    date = ("Date", "Thu, 01 Feb 2035 03:04:05 GMT")
    proxy.fail(entry("", "head"), lambda asked, forward: Answer(status=403, headers=[date], body=b""))
    assert store.now_ms() == int(datetime(2035, 2, 1, 3, 4, 5, tzinfo=UTC).timestamp()) * 1000
    assert dict(proxy.requests) == {"head": 1}
    proxy.fail(entry("", "head"), lambda asked, forward: Answer(status=200, headers=[], body=b""))
    with pytest.raises(CheckpointError, match="says no time"):
        store.now_ms()


@of_s3
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("extra", [{"sas_token": "sv=2022-11-02&sig=abc"}, {"tenant_id": "t"}, {}], ids=str)
def test_the_clock_of_azure_needs_no_right_either(
    found: dict[str, Connection], proxy: FaultyProxy, extra: dict[str, str]
) -> None:
    """The library signs nothing with a SAS token, and asks for a key for an application."""
    found["azure"] = Connection(
        conn_id="azure", conn_type="wasb", host=f"{proxy.url}/account", login="account", password="a2V5", extra=extra
    )
    date = ("Date", "Thu, 01 Feb 2035 03:04:05 GMT")
    proxy.fail(entry("", "head"), lambda asked, forward: Answer(status=403, headers=[date], body=b""))
    assert open_store("abfs://azure@container/orders").now_ms() > 2_000_000_000_000
    assert [asked.key for asked in proxy.asked] == ["container/orders"]


@of_s3
def test_many_keys_are_listed_and_deleted_by_the_page(
    found: dict[str, Connection], location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoint" / "many").mkdir(parents=True)
    for number in range(110):
        (tmp_path / "checkpoint" / "many" / f"{number:03}").touch()
    object_store.load(tmp_path / "checkpoint")
    monkeypatch.setattr(store_of_objects, "_AT_ONCE", 100)
    proxy = FaultyProxy(object_store.endpoint(), page=100)
    proxy.start()
    found[CONN_ID] = s3_connection(CONN_ID, proxy.url)
    store = open_store(location)
    with proxy.counted() as page:
        assert list(store.list_after("many", "009", limit=100)) == [f"{number:03}" for number in range(10, 110)]
    with proxy.counted() as full:
        assert len(store.list_after("many", limit=100)) == 100
    assert dict(page) == dict(full) == {"list": 1}
    with proxy.counted() as passed:
        assert list(store.list_after("")) == ["many"]
    assert dict(passed) == {"list": 2}, "the rest of a folder is passed over"
    with proxy.counted() as removal:
        store.delete_many(f"many/{number:03}" for number in range(110))
    assert dict(removal) == {"delete": 2}
    assert store.list("many") == []
    proxy.stop()


@of_s3
@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("s3://bucket", "a folder of its own"),
        ("s3://bucket/", "a folder of its own"),
        ("s3://bucket/a/../b", "no path of a checkpoint"),
        ("s3://bucket/.hidden", "no path of a checkpoint"),
        ("s3:///prefix", "s3://conn_id@bucket/prefix"),
        ("s3:bucket/prefix", "s3://conn_id@bucket/prefix"),
        ("s3://AKIA:verysecret@bucket/prefix", "no key or password"),
        ("s3://fast--use1-az4--x-s3/prefix", "no order"),
        ("abfs://container@account.dfs.core.windows.net/prefix", "is a storage account"),
    ],
)
def test_what_is_no_address_is_refused(location: str, why: str) -> None:
    with pytest.raises(CheckpointError, match=why) as told:
        open_store(location)
    assert "verysecret" not in str(told.value)


@of_s3
@pytest.mark.parametrize(
    ("given", "why"),
    [
        (Connection(conn_id=CONN_ID, conn_type="wasb"), "is of type 'wasb'; s3:// needs one of type 'aws'"),
        (
            Connection(conn_id=CONN_ID, conn_type="aws", extra={"role_arn": "arn:…"}),
            "'role_arn', which is not supported",
        ),
        (Connection(conn_id=CONN_ID, conn_type="aws", extra={"verify": "/not/there.pem"}), "that file cannot be read"),
    ],
)
def test_a_connection_of_no_use_is_named(
    store: Store, found: dict[str, Connection], given: Connection, why: str
) -> None:
    found[CONN_ID] = given
    with pytest.raises(CheckpointError, match=f"{CONN_ID}.*{why}"):
        store.list("")


def _lagging(asked: Asked, forward: Forward, proxy: FaultyProxy) -> Answer:
    """A listing without the key that was put last."""
    answer = forward()
    fresh = next((one.key for one in reversed(proxy.asked) if one.kind == "put"), "")
    kept = re.sub(rf"<Contents><Key>{re.escape(fresh)}</Key>.*?</Contents>".encode(), b"", answer.body, flags=re.DOTALL)
    return Answer(status=answer.status, headers=answer.headers, body=kept)


@of_s3
def test_batches_go_on_where_a_listing_misses_a_fresh_key(proxy: FaultyProxy, location: str, tmp_path: Path) -> None:
    world, hidden = World(tmp_path, checkpoint=location), 0

    def now_and_then(asked: Asked) -> bool:
        nonlocal hidden
        hidden += asked.kind == "list"
        return asked.kind == "list" and hidden % 3 == 0

    proxy.fail(now_and_then, lambda asked, forward: _lagging(asked, forward, proxy), times=100_000)
    for number in range(3):
        world.land(2 * number, 2 * number + 1)
        world.run(number)
    assert world.table() == {number: [2 * number, 2 * number + 1] for number in range(3)}


def test_batches_go_on_where_every_tenth_request_fails(proxy: FaultyProxy, location: str, tmp_path: Path) -> None:
    world, asked_for = World(tmp_path, checkpoint=location), 0
    faults = [busy, done_but_lost, lost, done_but_failed]

    def every_tenth(asked: Asked) -> bool:
        nonlocal asked_for
        asked_for += 1
        return asked_for % 10 == 0

    proxy.fail(every_tenth, lambda asked, forward: faults[asked_for // 10 % 4](asked, forward), times=100_000)
    for number in range(3):
        world.land(2 * number, 2 * number + 1)
        world.run(number)
    assert world.table() == {number: [2 * number, 2 * number + 1] for number in range(3)}
    assert world.run(3) is None
