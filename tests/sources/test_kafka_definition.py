"""What a KafkaSource takes, and how a connection becomes what both clients are given: without a broker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import DefinitionError, SourceError, UntrustedError
from airflow_provider_microbatch.kafka.access import Access
from airflow_provider_microbatch.sources.kafka import KafkaSource

ROOT = Path(__file__).resolve().parents[2]
PLAIN: dict[str, Any] = {"bootstrap_servers": "broker:9092", "topics": ["orders"]}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"topics": ["orders"]}, "either bootstrap_servers or conn_id"),
        ({**PLAIN, "conn_id": "kafka"}, "either bootstrap_servers or conn_id"),
        ({"conn_id": "kafka"}, "one of topics, pattern and partitions"),
        ({**PLAIN, "pattern": "a.*"}, "one of topics, pattern and partitions"),
        ({"conn_id": "kafka", "pattern": "("}, "no regular expression"),
        ({"conn_id": "kafka", "topics": ["a/b"]}, "no name of a topic"),
        ({"conn_id": "kafka", "partitions": {"orders": []}}, "numbers by topic"),
        ({"conn_id": "kafka", "partitions": {"orders": [True]}}, "numbers by topic"),
        ({**PLAIN, "start": "yesterday"}, "start must be"),
        ({**PLAIN, "start": "2026-11-21T00:00:00"}, "offset from UTC"),
        ({**PLAIN, "start": {"orders": {"0": -3}}}, "start must be"),
        ({**PLAIN, "start": {}}, "start must be"),
        ({**PLAIN, "max_rows": 0}, "max_rows"),
        ({**PLAIN, "max_rows": True}, "max_rows"),
        ({**PLAIN, "on_data_loss": "skip"}, "on_data_loss"),
        ({**PLAIN, "isolation": "dirty"}, "isolation"),
        ({**PLAIN, "headers": 1}, "headers"),
        ({**PLAIN, "timeout": 0}, "timeout"),
        ({**PLAIN, "options": {"startingOffsets": "latest"}}, "parameter start"),
        ({**PLAIN, "options": {"kafka.sasl.jaas.config": "x"}}, "connection"),
        ({**PLAIN, "options": {"kafka.ssl.truststore.location": "/x"}}, "connection"),
        ({**PLAIN, "packages": "a:b:1"}, "packages"),
    ],
)
def test_what_is_wrong_is_named(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        KafkaSource(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        PLAIN,
        {"conn_id": "kafka", "partitions": {"orders": (1, 0)}, "start": {"orders": {0: 3, 1: -2}}},
        {"conn_id": "kafka", "pattern": "orders-.*", "start": 1_795_000_000_000, "jars": ("/a.jar",)},
        {"conn_id": "kafka", "topics": "orders", "start": "2026-11-21T00:00:00Z", "options": {"minPartitions": 4}},
    ],
)
def test_a_definition_travels_as_json(arguments: dict[str, Any]) -> None:
    source = KafkaSource(**arguments)
    assert Definition.from_dict(json.loads(json.dumps(source.to_dict())), any_server=True) == source


def test_a_broker_that_only_a_checkpoint_names_is_not_spoken_to() -> None:
    with pytest.raises(UntrustedError, match="broker:9092"):
        Definition.from_dict(KafkaSource(**PLAIN).to_dict())
    Definition.from_dict(KafkaSource(conn_id="kafka", topics=["orders"]).to_dict())


def test_a_moment_begins_at_its_millisecond() -> None:
    assert KafkaSource(**PLAIN, start="1970-01-01T01:00:01.5+01:00").begins_ms == 1500
    assert KafkaSource(**PLAIN, start="latest").begins_ms is None


def test_sources_that_could_read_one_topic_are_known() -> None:
    def kafka(**how: Any) -> KafkaSource:
        return KafkaSource(bootstrap_servers="b", **how)

    one = kafka(topics=["a", "b"])
    assert one.shares_with(kafka(partitions={"b": [0]}))
    assert one.shares_with(kafka(pattern="b|c"))
    assert kafka(pattern=".*").shares_with(one)
    assert not one.shares_with(kafka(topics=["c"]))
    assert not one.shares_with(kafka(pattern="c"))
    assert not one.shares_with(KafkaSource(conn_id="elsewhere", topics=["a"]))


def test_the_connector_is_that_of_the_installed_pyspark_unless_jars_are_given() -> None:
    import pyspark

    (package,) = KafkaSource(**PLAIN).requires().packages
    assert package == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    given = KafkaSource(**PLAIN, jars=["/opt/kafka.jar"]).requires()
    assert (given.packages, given.jars) == ((), ("/opt/kafka.jar",))


def test_a_definition_imports_neither_client_nor_spark() -> None:
    asked = "import sys; from airflow_provider_microbatch import KafkaSource; KafkaSource(conn_id='a', topics='b');"
    asked += "print([name for name in ('confluent_kafka', 'pyspark', 'airflow', 'pandas') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def connection(**fields: Any) -> Connection:
    return Connection(conn_id="kafka", conn_type="kafka", **fields)


def test_secrets_of_a_connection_are_none_of_the_options_that_travel_with_a_job() -> None:
    access = Access.of_connection(connection(host="b", port=9093, login="me", password='a"\\b'))
    assert access.servers == "b:9093"
    assert access.options() == {
        "kafka.bootstrap.servers": "b:9093",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
    }
    assert access.secrets() == {
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        r'username="me" password="a\"\\b";'
    }
    assert 'a"' not in repr(access)


def test_certificates_travel_and_their_key_does_as_a_secret(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(f"the {name}")
    extra = {
        "bootstrap.servers": "b:1",
        "security.protocol": "ssl",
        "ssl.ca.location": str(tmp_path / "ca"),
        "ssl.certificate.location": str(tmp_path / "cert"),
        "ssl.key.location": str(tmp_path / "key"),
        "ssl.key.password": "hush",
        "group.id": "theirs",
        "enable.auto.commit": True,
    }
    access = Access.of_connection(connection(extra=extra))
    assert "group.id" not in access.client
    assert "enable.auto.commit" not in access.client
    options = access.options()
    assert options["kafka.ssl.truststore.certificates"] == "the ca"
    assert options["kafka.ssl.keystore.certificate.chain"] == "the cert"
    assert access.secrets() == {"kafka.ssl.keystore.key": "the key", "kafka.ssl.key.password": "hush"}
    (tmp_path / "ca").unlink()
    with pytest.raises(SourceError, match=r"ssl\.ca\.location"):
        access.options()


def test_what_is_not_translated_is_refused_unless_the_connection_says_it_for_spark() -> None:
    extra = {"bootstrap.servers": "b:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    with pytest.raises(SourceError, match=r"kafka\.sasl\.jaas\.config"):
        Access.of_connection(connection(extra=extra)).secrets()
    said = {**extra, "spark": {"kafka.sasl.jaas.config": "x", "kafka.sasl.mechanism": "GSSAPI"}}
    access = Access.of_connection(connection(extra=said))
    assert access.secrets() == said["spark"]
    assert "kafka.sasl.mechanism" not in access.options()
    with pytest.raises(SourceError, match="names no broker"):
        Access.of_connection(connection(extra={"security.protocol": "SSL"}))
    with pytest.raises(SourceError, match="always verifies"):
        Access.of_connection(connection(host="b", extra={"enable.ssl.certificate.verification": "false"})).options()


def test_the_documented_dag_is_one() -> None:
    from airflow_provider_microbatch.pipeline import Pipeline

    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "kafka.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    pipeline = names["pipeline"]
    assert Pipeline.from_dict(json.loads(json.dumps(pipeline.to_dict()))) == pipeline
    assert pipeline.sources["orders"].topics == ["orders"]


def test_topics_that_are_listed_otherwise_are_not_called_new() -> None:
    before = KafkaSource(bootstrap_servers="a:1", topics=["orders", "customers"])
    assert KafkaSource(bootstrap_servers="a:1,b:1", topics=["customers", "orders"]).moved_from(before) is None
    longer = KafkaSource(bootstrap_servers="a:1", topics=["orders", "customers", "more"])
    assert longer.moved_from(before) == "more begin as new topics do"
    assert before.moved_from(longer) == "more are not read any more"
    assert before.keeps_rows()
