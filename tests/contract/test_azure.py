"""Azure Blob Storage as a connection of type ``wasb`` leads to it, on a real server (Azurite): each form of the
connection, what refusals are told as, listings that begin at the beginning, a pipeline that moves there and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.configuration import hand_down
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores import object_store as store_of_objects
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.stores.object_store.wasb import WasbAccess
from tests.contract.registered import registered
from tests.execution.world import World
from tests.support import object_store, object_store_azure
from tests.support.faulty_proxy import FaultyProxy, error
from tests.support.object_services import SERVICES
from tests.support.object_store_azure import ACCOUNT, CONTAINER, KEY, sas

system_name = registered(["azure"])
pytestmark = [pytest.mark.usefixtures("system_name"), pytest.mark.slow]

CONN_ID = "lake"
WRONG_KEY = "b2YgYW5vdGhlciBhY2NvdW50"


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Connection]:
    """Connections by id, as Airflow would find them, beside an environment that leads elsewhere."""
    found: dict[str, Connection] = {}
    object_store_azure.endpoint()
    monkeypatch.setattr(connections, "_found_by", [found.__getitem__])
    for name in object_store_azure.environment(""):
        monkeypatch.delenv(name)
    for name, value in SERVICES["azure"].elsewhere.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"abfs://{CONN_ID}@{CONTAINER}{tmp_path}/checkpoint")


@pytest.fixture
def proxy() -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(object_store_azure.endpoint(), above=2)
    proxy.start()
    yield proxy
    proxy.stop()


def fields(form: str) -> dict[str, Any]:
    """The fields of a connection by which the tests' server is reached."""
    url = f"{object_store_azure.endpoint()}/{ACCOUNT}"
    at = {"login": ACCOUNT, "host": url}
    told = f"DefaultEndpointsProtocol=http;BlobEndpoint={url}/;"
    return {
        "a key as password": {**at, "password": KEY},
        "a shared access key": {**at, "extra": {"shared_access_key": KEY}},
        "an account key": {**at, "extra": {"account_key": KEY}},
        "a SAS token": {**at, "extra": {"sas_token": sas()}},
        "a SAS token with its question mark": {**at, "extra": {"sas_token": f"?{sas()}"}},
        "a SAS token and a password": {**at, "password": WRONG_KEY, "extra": {"sas_token": sas()}},
        "a SAS URL": {"extra": {"sas_token": f"{url}/?{sas()}"}},
        "a SAS URL of the container": {"extra": {"sas_token": f"{url}/{CONTAINER}?{sas()}"}},
        "a field of an old form": {**at, "extra": {"extra__wasb__sas_token": sas()}},
        "a connection string with a key": {
            "extra": {"connection_string": f"{told}AccountName={ACCOUNT};AccountKey={KEY};"}
        },
        "a connection string with a SAS token": {
            "extra": {"connection_string": f"{told}SharedAccessSignature={sas()}"},
            "login": "another",
            "password": WRONG_KEY,
        },
    }[form]


@pytest.mark.parametrize(
    "form",
    [
        "a key as password",
        "a shared access key",
        "an account key",
        "a SAS token",
        "a SAS token with its question mark",
        "a SAS token and a password",
        "a SAS URL",
        "a SAS URL of the container",
        "a field of an old form",
        "a connection string with a key",
        "a connection string with a SAS token",
    ],
)
def test_each_form_of_a_connection_leads_there(store: Store, found: dict[str, Connection], form: str) -> None:
    found[CONN_ID] = Connection(conn_id=CONN_ID, conn_type="wasb", **fields(form))
    assert store.put_if_absent("offsets/0", b"x") is True
    assert store.get("offsets/0") == b"x"
    assert store.list("offsets") == ["0"]
    assert store.now_ms() > 1_700_000_000_000


@pytest.mark.parametrize(
    ("given", "account", "endpoint"),
    [
        ({"login": "lake"}, "lake", "https://lake.blob.core.windows.net"),
        ({"host": "lake"}, "lake", "https://lake.blob.core.windows.net"),
        ({"host": "lake.blob.core.windows.net"}, "lake", "https://lake.blob.core.windows.net"),
        ({"host": "https://lake.blob.core.windows.net/"}, "lake", "https://lake.blob.core.windows.net"),
        ({"host": "https://lake.dfs.core.windows.net"}, "lake", "https://lake.blob.core.windows.net"),
        ({"host": "lake.blob.core.chinacloudapi.cn"}, "lake", "https://lake.blob.core.chinacloudapi.cn"),
        ({"login": "lake", "host": "https://blobs.example/"}, "lake", "https://blobs.example"),
        (
            {"login": "application", "host": "https://lake.blob.core.windows.net", "extra": {"tenant_id": "t"}},
            "lake",
            "https://lake.blob.core.windows.net",
        ),
        (
            {"extra": {"connection_string": "AccountName=lake;AccountKey=a2V5;EndpointSuffix=core.usgovcloudapi.net"}},
            "lake",
            "https://lake.blob.core.usgovcloudapi.net",
        ),
        (
            {"extra": {"sas_token": "https://lake.blob.core.windows.net/?sv=1&sig=x"}},
            "lake",
            "https://lake.blob.core.windows.net",
        ),
        (
            {"extra": {"sas_token": "https://lake.blob.core.windows.net/orders?sv=1&sr=c&sig=x"}},
            "lake",
            "https://lake.blob.core.windows.net",
        ),
        (
            {"extra": {"sas_token": "https://lake.blob.core.windows.net?sv=1&sr=c&sig=x"}},
            "lake",
            "https://lake.blob.core.windows.net",
        ),
    ],
)
def test_the_account_is_where_the_connection_says(given: dict[str, Any], account: str, endpoint: str) -> None:
    access = WasbAccess.of(Connection(conn_id=CONN_ID, conn_type="wasb", **given))
    assert (access.account, access.endpoint) == (account, endpoint)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"password": "secret"}, "names no storage account: give it as login"),
        ({"extra": {"connection_string": "secret"}}, "without AccountName and AccountKey"),
        ({"extra": {"connection_string": "AccountName=lake;SharedAccessKey=secret"}}, "without AccountName and"),
        ({"login": "lake", "password": "no base64, but a secret"}, "makes no client"),
        (
            {"login": "lake", "extra": {"managed_identity_client_id": "secret"}},
            "'managed_identity_client_id', which is not supported .*AZURE_STORAGE_ACCOUNT_NAME",
        ),
    ],
)
def test_a_connection_of_no_use_is_named(
    store: Store, found: dict[str, Connection], given: dict[str, Any], why: str
) -> None:
    found[CONN_ID] = Connection(conn_id=CONN_ID, conn_type="wasb", **given)
    with pytest.raises(CheckpointError, match=f"{CONN_ID}.*{why}") as told:
        store.list("")
    assert "secret" not in str(told.value).replace("client_secret", "")


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"password": WRONG_KEY}, "failed to authenticate the request.*see that its token has not expired"),
        ({"extra": {"sas_token": "expired"}}, "failed to authenticate the request.*see that its token has not expired"),
        ({"extra": {"sas_token": "of no use"}}, "Give connection 'lake' the rights to list bucket 'microbatch'"),
    ],
    ids=["another account's key", "an expired token", "a token without rights"],
)
def test_a_refusal_is_told_with_container_key_connection_and_remedy_and_without_secrets(
    store: Store, found: dict[str, Connection], given: dict[str, Any], remedy: str
) -> None:
    if "extra" in given:
        expired = given["extra"]["sas_token"] == "expired"
        given = {"extra": {"sas_token": sas(seconds=-60.0) if expired else sas(rights="t")}}
    found[CONN_ID] = object_store_azure.connection(CONN_ID, object_store_azure.endpoint(), **given)
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
        assert not any(text in str(told.value) for text in ("sig=", WRONG_KEY, KEY, "RequestId")), told.value


def test_a_token_that_has_expired_is_told_from_a_wrong_key(
    store: Store, found: dict[str, Connection], proxy: FaultyProxy
) -> None:
    """As Azure says it; Azurite does not say why."""
    found[CONN_ID] = object_store_azure.connection(CONN_ID, proxy.url)
    detail = (
        "Signature not valid in the specified time frame: Start [Thu, 26 Nov 2026 08:00:00 GMT] - "
        "Expiry [Thu, 26 Nov 2026 09:00:00 GMT] - Current [Thu, 26 Nov 2026 10:00:00 GMT]"
    )
    for more, remedy in (
        (f"<AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail>", "token of connection 'lake' has expired"),
        ("", "keys of connection 'lake' are not those"),
    ):
        refusal = error(403, "AuthenticationFailed", "Server failed to authenticate the request.", more)
        proxy.fail(lambda asked: True, lambda asked, forward, refusal=refusal: refusal, times=2)  # type: ignore[misc]
        with pytest.raises(CheckpointError, match=remedy):
            store.list("offsets")


def test_a_missing_container_is_named(found: dict[str, Connection]) -> None:
    found[CONN_ID] = object_store_azure.connection(CONN_ID, object_store_azure.endpoint(), password=KEY)
    for call in (lambda store: store.put_if_absent("offsets/0", b"x"), lambda store: store.list("offsets")):
        with pytest.raises(CheckpointError, match="There is no bucket 'nothing': make it"):
            call(open_store(f"abfs://{CONN_ID}@nothing/orders"))


def test_a_token_that_expires_meanwhile_is_asked_for_again(store: Store, found: dict[str, Connection]) -> None:
    url = object_store_azure.endpoint()
    found[CONN_ID] = object_store_azure.connection(CONN_ID, url, extra={"sas_token": sas(seconds=-60.0)})
    with pytest.raises(CheckpointError):
        store.put_if_absent("offsets/0", b"x")
    found[CONN_ID] = object_store_azure.connection(CONN_ID, url)
    assert store.put_if_absent("offsets/0", b"x") is True


def test_a_listing_after_a_name_ends_where_the_service_begins_each_at_the_beginning(
    store: Store, found: dict[str, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that does not know ``startFrom`` does, such as Azurite before 3.37."""
    proxy = FaultyProxy(object_store_azure.endpoint(), above=2, unknown="startFrom")
    proxy.start()
    found[CONN_ID] = object_store_azure.connection(CONN_ID, proxy.url)
    names = [f"{number:02}" for number in range(10)]
    for name in names:
        store.put_if_absent(f"attempts/{name}", b"x")
    store.put_if_absent("metadata", b"x")
    monkeypatch.setattr(store_of_objects, "_AT_ONCE", 3)
    refusal = error(403, "AuthorizationFailure", "So that no test goes on without end.")
    proxy.fail(lambda asked: proxy.requests["list"] > 20, lambda asked, forward: refusal, times=1_000)
    with proxy.counted() as asked:
        assert list(store.list_after("")) == ["attempts", "metadata"]
    assert asked["list"] <= 2, "one that would pass over a folder, and one that shows that there is no passing over"
    with proxy.counted() as asked:
        assert list(store.list_after("attempts", "03", limit=4)) == names[4:8]
    assert asked["list"] == 1
    assert proxy.asked[-1].query["startFrom"][0].endswith("/attempts/03"), "one that knows begins there"
    proxy.stop()


def test_a_pipeline_moves_from_s3_to_azure_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at = {"conn_type": "wasb", "login": ACCOUNT, "password": KEY, "host": f"{object_store_azure.endpoint()}/{ACCOUNT}"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(at))
    hand_down()
    there = f"abfs://lake@{CONTAINER}{tmp_path}/checkpoint"
    places = [object_store.address(tmp_path / "first"), there, object_store.address(tmp_path / "last")]
    world = World(tmp_path, checkpoint=places[0])
    for batch, place in enumerate(places):
        if batch:
            world.clock += 1_000
            assert main(["copy", places[batch - 1], place]) == 0, capsys.readouterr()
            world.options["checkpoint"] = place
        world.land(batch)
        world.run(batch)
    assert world.table() == {batch: [batch] for batch in range(3)}
    assert main(["check", places[-1]]) == 0
    assert "3 planned, 3 committed" in capsys.readouterr().out
    assert main(["log", there]) != 0, "nobody goes on there"
