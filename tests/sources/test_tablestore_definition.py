"""What a TablestoreSource refuses before anything is touched, and how a connection reaches an instance."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import DefinitionError, SourceError
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.tablestore import TablestoreSource
from airflow_provider_microbatch.sources.tablestore.access import Access

ROOT = Path(__file__).resolve().parents[2]
HOST = "https://shop.eu-central-1.ots.aliyuncs.com"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"table": ""}, "table must be a name"),
        ({"table": "a/b"}, "a/b"),
        ({"table": "a\n"}, "table must be a name"),
        ({"tunnel": "1st"}, "tunnel must be a name"),
        ({"conn_id": " "}, "conn_id"),
        ({"conn_id": None}, "conn_id"),
        ({"max_records": 0}, "max_records"),
        ({"on_data_loss": "ignore"}, "on_data_loss"),
    ],
)
def test_what_is_wrong_is_named(arguments: dict[str, Any], what: str) -> None:
    with pytest.raises(DefinitionError, match=rf"TablestoreSource.*{what}"):
        TablestoreSource(**{"table": "orders", "tunnel": "changes", "conn_id": "shop", **arguments})


def test_a_definition_travels_and_tells_what_it_reads() -> None:
    source = TablestoreSource("orders", "changes", conn_id="shop", max_partitions=4)
    assert Definition.from_dict(json.loads(json.dumps(source.to_dict()))) == source
    assert source.location() == "tablestore://shop/orders/changes"
    assert source.shares_with(TablestoreSource("orders", "other", conn_id="shop"))
    assert not source.shares_with(TablestoreSource("returns", "changes", conn_id="shop"))


@pytest.mark.parametrize(
    "given",
    [
        {"host": HOST, "login": "key", "password": "hush"},
        {"host": f"{HOST}/", "extra": {"access_key_id": "key", "access_key_secret": "hush"}},
        {"host": "shop.eu-central-1.ots.aliyuncs.com", "schema": "shop", "login": "key", "password": "hush"},
    ],
)
def test_a_connection_gives_endpoint_instance_and_keys(given: dict[str, Any]) -> None:
    found = Access.of_connection(Connection(conn_id="shop", conn_type="generic", **given))
    assert (found.endpoint, found.instance) == (HOST, "shop")
    assert found.secrets == {"access_key_id": "key", "access_key_secret": "hush"}
    assert "hush" not in repr(found)


def test_a_key_for_a_while_comes_with_its_token() -> None:
    extra = {"security_token": "t"}
    given = Connection(conn_id="shop", conn_type="generic", host=HOST, login="key", password="hush", extra=extra)
    assert Access.of_connection(given).secrets["security_token"] == "t"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"host": None}, "the host must be the endpoint"),
        ({"host": "ftp://shop"}, "the host must be the endpoint"),
        ({"host": f"{HOST}/tunnel"}, "the host must be the endpoint"),
        ({"host": "https://me:hush@shop"}, "the host must be the endpoint"),
        ({"host": "https://[shop"}, "the host must be the endpoint"),
        ({"schema": "a b"}, "the schema must be the name of the instance"),
        ({"login": None}, "no access_key_id, which is its login"),
        ({"password": None}, "no access_key_secret, which is its password"),
        ({"login": "key\r\nx-ots-other: 1"}, "access_key_id has a space"),
    ],
)
def test_a_connection_that_leads_nowhere_is_refused(given: dict[str, Any], what: str) -> None:
    fields = {"host": HOST, "login": "key", "password": "hush", **given}
    with pytest.raises(SourceError, match=rf"'shop'.*{what}") as error:
        Access.of_connection(Connection(conn_id="shop", conn_type="generic", **fields))
    assert "hush" not in str(error.value)


def test_a_pipeline_reads_a_tunnel_by_one_source() -> None:
    def pipeline(*tunnels: str) -> Pipeline:
        sources = {f"of_{at}": TablestoreSource("orders", one, conn_id="shop") for at, one in enumerate(tunnels)}
        return Pipeline("p", checkpoint="/c", sources=sources, sink=FileSink("/t"), transform="jobs/t.py:transform")

    assert pipeline("changes", "others")
    with pytest.raises(DefinitionError, match=r"'of_0' and 'of_1' both read .*orders/changes.*one source"):
        pipeline("changes", "changes")


def test_a_definition_imports_no_client() -> None:
    code = (
        "import sys; from airflow_provider_microbatch import TablestoreSource; "
        "TablestoreSource('orders', 'changes', conn_id='shop'); "
        "print([name for name in ('pyspark', 'pyarrow') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "[]"
