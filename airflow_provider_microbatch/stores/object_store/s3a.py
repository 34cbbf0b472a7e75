"""Settings by which Spark reaches a bucket: Hadoop's connector, ``s3a``, and a connection as its settings."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from airflow_provider_microbatch.connections import Connect, Connection, type_of
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.job import Requirements
from airflow_provider_microbatch.stores.object_store.address import S3
from airflow_provider_microbatch.stores.object_store.aws import AwsAccess
from airflow_provider_microbatch.stores.object_store.credentials import TYPES

_SETTING = "fs.s3a.bucket."
_OF_BUCKET = re.compile(r"fs\.s3a\.bucket\.(?P<bucket>.+?)\.(?P<name>endpoint|endpoint\.region|access\.key)")
_AMAZON = ""
"""The service of a connection that names no endpoint."""
_AMAZON_HOST = re.compile(r"\.amazonaws\.com(\.cn)?/*$")
_HADOOP = re.compile(r"hadoop-client-api-(.+)\.jar")


def connector(packages: Sequence[str] | None) -> Requirements:
    """Return Hadoop's connector in the version of Spark's own Hadoop.

    :param packages: Maven coordinates to use instead; empty: Spark has the connector.
    :raises DefinitionError: if the version is not known.
    """
    if packages is not None:
        return Requirements(packages=tuple(packages))
    version = hadoop_version()
    if version is None:
        raise DefinitionError(
            "no pyspark with its jars is installed here by which to tell the version of Hadoop's connector: give "
            "packages, such as ['org.apache.hadoop:hadoop-aws:3.4.2'], or [] if Spark has it."
        )
    return Requirements(packages=(f"org.apache.hadoop:hadoop-aws:{version}",))


def settings_of(conn_id: str | None, bucket: str, connect: Connect) -> dict[str, str]:
    """Return a connection as settings of ``s3a``, for one bucket alone; empty for the environment's credentials.

    :raises DefinitionError: if there is no such connection, or it is of another type.
    """
    if conn_id is None:
        return {}
    connection = connect(conn_id)
    if connection.conn_type != TYPES[S3]:
        raise DefinitionError(
            f"connection {conn_id!r} is of type {type_of(connection)}; s3:// needs one of type {TYPES[S3]!r}."
        )
    return {f"{_SETTING}{bucket}.{name}": value for name, value in s3a_settings(connection).items()}


def check_one_endpoint(secrets: Mapping[str, str]) -> None:
    """Check that no bucket's name leads to two services. Hadoop keeps one client for a bucket's name in a Spark
    process, that of the first who asks: objects of one service would be read, or written, for the other's.

    :param secrets: of all that a job reads and writes, by name. Those that are no settings of :func:`settings_of` do
        not count.
    :raises DefinitionError: if one does.
    """
    services: dict[str, dict[str, str]] = {}
    for owner, setting, value in _settings_in(secrets):
        if (found := _OF_BUCKET.fullmatch(setting)) is not None:
            by_owner = services.setdefault(found["bucket"], {})
            by_owner.setdefault(owner, _AMAZON)
            if found["name"] == "endpoint" and not _AMAZON_HOST.search(value):
                by_owner[owner] = value.rstrip("/")
    for bucket, by_owner in services.items():
        if len({*by_owner.values()}) > 1:
            raise DefinitionError(
                f"connections of this pipeline name bucket {bucket!r} at two endpoints: Spark would have one client "
                "for both, and take objects of one for the other's. Write one endpoint in one way; where they are two, "
                "rename a bucket, or read one of them in a pipeline of its own, by a Spark of its own."
            )


def _settings_in(secrets: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Owner, name and value of the settings of ``s3a``: a source has each alone, a table has all in one, as JSON."""
    for name, value in secrets.items():
        owner, _, setting = name.rpartition("/")
        if setting.startswith(_SETTING):
            yield owner, setting, value
        elif value.startswith(f'{{"{_SETTING}'):
            yield from ((name, one, given) for one, given in json.loads(value).items())


def hadoop_version() -> str | None:
    """Version of the Hadoop that the installed PySpark contains; None if it contains none."""
    found = importlib.util.find_spec("pyspark")
    folders = () if found is None else found.submodule_search_locations or ()
    names = [match for folder in folders for jar in Path(folder, "jars").glob("hadoop-client-api-*.jar")
             if (match := _HADOOP.fullmatch(jar.name))]  # fmt: skip
    return names[0][1] if names else None


def s3a_settings(connection: Connection) -> dict[str, str]:
    """Return a connection of type ``aws`` as settings of Hadoop's ``s3a``, named as below
    ``fs.s3a.bucket.<bucket>``."""
    access = AwsAccess.of(connection)
    settings: dict[str, str] = {}
    if access.endpoint:
        settings["endpoint"] = access.endpoint
        settings["connection.ssl.enabled"] = str(not access.is_plain).lower()
        settings["path.style.access"] = str(access.addressing != "virtual").lower()
    if access.region:
        settings["endpoint.region"] = access.region
    if access.keys:
        key, secret = access.keys
        kind = "TemporaryAWSCredentialsProvider" if access.token else "SimpleAWSCredentialsProvider"
        settings["aws.credentials.provider"] = f"org.apache.hadoop.fs.s3a.{kind}"
        settings |= {"access.key": key, "secret.key": secret}
        if access.token:
            settings["session.token"] = access.token
    return settings
