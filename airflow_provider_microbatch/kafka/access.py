"""Access to a cluster: the settings of a connection, which are librdkafka's, and those that Spark's connector gets.

An Airflow connection of type ``kafka``, as in Airflow's own Kafka provider: its extra is the configuration of
librdkafka (``bootstrap.servers``, ``security.protocol``, ``sasl.mechanism``, …). Host and port, login and password may
be given by the connection's own fields as well. ``spark`` in the extra holds options of Spark's connector
(``kafka.sasl.jaas.config``, …) for settings that are not translated here; all of them count as secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import MicroBatchError, SourceError

SPARK = "spark"
_OF_CONSUMERS = (
    *("group.", "auto.", "enable.auto.", "isolation.level", "partition.assignment.", "session.timeout.", "fetch."),
    *("max.poll.", "queued.", "heartbeat.", "coordinator.", "enable.partition.eof", "check.crcs", "default.topic"),
)
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True, kw_only=True)
class Access:
    """:param client: configuration of librdkafka. May hold secrets.
    :param spark: options of Spark's connector that replace those derived from ``client``.
    :param failed: class of the errors about the access, and about the cluster behind it.
    """

    client: Mapping[str, str] = field(repr=False)
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    failed: type[MicroBatchError] = SourceError

    @classmethod
    def of_servers(cls, servers: str, *, failed: type[MicroBatchError] = SourceError) -> Access:
        """Access to brokers that require no login."""
        return cls(client={"bootstrap.servers": servers}, failed=failed)

    @classmethod
    def of_connection(cls, connection: Connection, *, failed: type[MicroBatchError] = SourceError) -> Access:
        """:raises MicroBatchError: of the class ``failed``, if the connection names no broker."""
        extra = dict(connection.extra)
        spark = extra.pop(SPARK, {})
        client = {key: _text(value) for key, value in extra.items() if _is_a_clients(key, value)}
        if connection.host:
            client.setdefault("bootstrap.servers", f"{connection.host}:{connection.port or 9092}")
        if connection.login and connection.password:
            client.setdefault("sasl.username", connection.login)
            client.setdefault("sasl.password", connection.password)
            client.setdefault("sasl.mechanism", "PLAIN")
            client.setdefault("security.protocol", "SASL_SSL")
        if not client.get("bootstrap.servers"):
            raise failed(
                f"connection {connection.conn_id!r} names no broker: give it a host, or 'bootstrap.servers' in its "
                "extra, as Airflow's Kafka provider has it."
            )
        if not isinstance(spark, Mapping):
            raise failed(f"connection {connection.conn_id!r}: {SPARK!r} in its extra is no object of options.")
        options = {str(key): _text(value) for key, value in spark.items()}
        return cls(client=client, spark=options, failed=failed)

    @property
    def servers(self) -> str:
        """Addresses of the brokers."""
        return self.client["bootstrap.servers"]

    def options(self) -> dict[str, str]:
        """Options of Spark's connector that are not secret. Certificates are passed by content: the files may not exist
        where Spark runs.

        :raises MicroBatchError: of the class ``failed``, if a setting of the connection has no equivalent in Java.
        """
        client = self.client
        options = {"kafka.bootstrap.servers": self.servers}
        if "security.protocol" in client:
            options["kafka.security.protocol"] = client["security.protocol"].upper()
        if mechanism := self._mechanism():
            options["kafka.sasl.mechanism"] = mechanism
        if client.get("enable.ssl.certificate.verification", "true").lower() == "false":
            raise self.failed(
                "the connection has enable.ssl.certificate.verification=false, and Kafka's Java client always verifies "
                "certificates. Name the brokers' authority instead: ssl.ca.location."
            )
        if "ssl.endpoint.identification.algorithm" in client:
            found = client["ssl.endpoint.identification.algorithm"]
            options["kafka.ssl.endpoint.identification.algorithm"] = "" if found == "none" else found
        if authority := self._pem("ssl.ca"):
            options |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.certificates": authority}
        if certificate := self._pem("ssl.certificate"):
            options |= {"kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.certificate.chain": certificate}
        return {key: value for key, value in options.items() if key not in self.spark}

    def secrets(self) -> dict[str, str]:
        """Options of Spark's connector that are passed to Spark apart from the job.

        :raises MicroBatchError: of the class ``failed``, if it is not known how Java logs in by the mechanism.
        """
        secrets = {}
        mechanism = self._mechanism()
        if mechanism and "kafka.sasl.jaas.config" not in self.spark:
            module = _LOGIN_MODULES.get(mechanism)
            if module is None:
                raise self.failed(
                    f"how Spark logs in by {mechanism} is not derived from the connection. Give it in the connection's "
                    f'extra: "{SPARK}": {{"kafka.sasl.jaas.config": "…"}}.'
                )
            login, password = (self.client.get(f"sasl.{name}", "") for name in ("username", "password"))
            secrets["kafka.sasl.jaas.config"] = (
                f"{module} required username={_quoted(login)} password={_quoted(password)};"
            )
        if key := self._pem("ssl.key"):
            secrets["kafka.ssl.keystore.key"] = key
        if "ssl.key.password" in self.client:
            secrets["kafka.ssl.key.password"] = self.client["ssl.key.password"]
        return {**secrets, **self.spark}

    def _mechanism(self) -> str:
        if not self.client.get("security.protocol", "").upper().startswith("SASL"):
            return ""
        return self.client.get("sasl.mechanism", self.client.get("sasl.mechanisms", "PLAIN")).upper()

    def _pem(self, name: str) -> str | None:
        if text := self.client.get(f"{name}.pem"):
            return text
        path = self.client.get(f"{name}.location")
        if not path or path == "probe":
            return None
        try:
            return Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise self.failed(f"the connection's {name}.location {path!r} cannot be read: {error}") from error


def _is_a_clients(key: str, value: object) -> bool:
    """Whether a setting belongs to every client of librdkafka, and not to its consumers alone."""
    return isinstance(value, (str, int, float, bool)) and not key.startswith(_OF_CONSUMERS) and not key.endswith("_cb")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(text: str) -> str:
    """Quote a text as in a JAAS configuration."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
