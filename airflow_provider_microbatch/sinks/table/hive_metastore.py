"""A Hive metastore, spoken to by its own protocol, for what no statement of Spark does: it gives a table other columns
and other files in one call.

Each such call is made on the condition that the table has the version that it had. A version is given once, and
:meth:`Metastore.give_version` makes earlier calls fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_microbatch.definition import is_read_back
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.registry import DISTRIBUTION
from airflow_provider_microbatch.sinks.hive_calls import condition, heeds_conditions, limit

VERSION = "microbatch.version"
"""Property of a table that is replaced as a whole."""


def check_uri(uri: object) -> None:
    """:raises DefinitionError: if ``uri`` is no address of a metastore."""
    # What was stored with a wrong one still tells commands where its attempts have left what.
    if not isinstance(uri, str) or not (is_read_back() or _is_address(uri)):
        raise DefinitionError(f"SparkCatalog: metastore {uri!r} is not of the form 'thrift://host:port'.")


def _is_address(uri: str) -> bool:
    try:
        address = urlsplit(uri)
        host, _ = address.hostname, address.port
    except ValueError:  # a port that is none, a bracket that is not closed
        return False
    is_more = address.path or address.query or address.fragment or "@" in address.netloc
    return address.scheme == "thrift" and bool(host) and not is_more


def check_client() -> None:
    """:raises SinkError: if the client is not installed."""
    try:
        import hive_metastore
        import thrift  # noqa: F401
    except ImportError as error:
        raise SinkError(
            f"a metastore is spoken to by pyiceberg's client for Hive, which is not installed ({error}). Run: "
            f"pip install '{DISTRIBUTION}[hive]', or leave out metastore=…"
        ) from error
    del hive_metastore


def replace_at_once(uri: str, *, namespace: str | None, table: str, by: str, version: str) -> bool:
    """Make a table what another one is, under its own name. One call of the metastore, which is not made if the table
    has another version by then.

    :param by: the other table, which stays.
    :param version: the version that the table has.
    :return: False if the metastore does not do that, and nothing was done: it heeds no condition, or takes no columns
        of other types in place of the old ones.
    :raises SinkError: if the table has another version, or if it is unknown whether the table was replaced.
    """
    from hive_metastore.ttypes import InvalidOperationException, MetaException
    from thrift.Thrift import TException

    place = namespace or "default"
    with _client(uri) as client:
        try:
            if not _heeds_conditions(client, place, by):
                return False
            new = client.get_table(place, by)
            new.tableName = table
            client.alter_table_with_environment_context(place, table, new, condition(VERSION, version))
        except InvalidOperationException:
            return False
        except MetaException as error:
            raise SinkError(f"the metastore {uri} has not replaced table {table}: {error.message}") from error
        except (TException, OSError) as error:
            raise SinkError(f"whether the metastore {uri} has replaced table {table} is unknown: {error}") from error
    return True


def names_partitions(uri: str, *, namespace: str | None, table: str) -> bool:
    """Whether the metastore names any partition of a table.

    :raises SinkError: if the metastore does not tell.
    """
    from thrift.Thrift import TException

    try:
        with _client(uri) as client:
            return bool(client.get_partition_names(namespace or "default", table, 1))
    except (TException, OSError) as error:
        raise SinkError(f"the metastore {uri} does not tell the partitions of table {table}: {error}") from error


def _heeds_conditions(client: Any, place: str, name: str) -> bool:
    from hive_metastore.ttypes import MetaException

    with suppress(MetaException):
        return heeds_conditions(client, place, name, parameter=VERSION)
    return False


@contextmanager
def _client(uri: str) -> Iterator[Any]:
    from hive_metastore import ThriftHiveMetastore
    from thrift.protocol.TBinaryProtocol import TBinaryProtocol
    from thrift.Thrift import TException
    from thrift.transport.TSocket import TSocket
    from thrift.transport.TTransport import TBufferedTransport

    address = urlsplit(uri)
    transport = TBufferedTransport(TSocket(address.hostname, address.port or 9083))
    limit(transport)
    try:
        transport.open()
    except (TException, OSError) as error:
        raise SinkError(f"the metastore {uri} cannot be reached: {error}") from error
    try:
        yield ThriftHiveMetastore.Client(TBinaryProtocol(transport))
    finally:
        transport.close()
