"""A catalog of Iceberg tables, found by its connection, and its errors without the secrets of the connection. Sources
and sinks of Iceberg tables share this module."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from airflow_provider_microbatch.connections import Connect, Connection, type_of
from airflow_provider_microbatch.exceptions import DefinitionError, MicroBatchError
from airflow_provider_microbatch.lifetime import Close

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

NAME = "catalog_name"
"""Key in the connection's extra: the name of the catalog, for catalogs that keep tables by that name, such as SQL
catalogs."""

_SECRET = re.compile(r"secret|token|credential|password|passwd|signature|access-key|account-key|sas", re.IGNORECASE)


class OpenCatalog:
    """A catalog that is opened when it is first needed.

    :param connect: finds the connection, each time that a catalog is opened.
    :param at_end: takes the function that closes the catalog.
    :param failed: class of the error that is raised if something could not be done.
    :param busy: class of the error that is raised if the catalog could not be asked, or if its answer was lost: the
        catalog may have done what it was told.
    :param defaults: properties of the catalog where the connection does not say otherwise.
    :param prepare: is given the catalog when it has been opened.
    """

    def __init__(
        self,
        conn_id: str,
        table: str,
        *,
        connect: Connect,
        at_end: Callable[[Close], None],
        failed: type[MicroBatchError],
        busy: type[MicroBatchError],
        defaults: Mapping[str, str] | None = None,
        prepare: Callable[[Catalog], None] | None = None,
    ) -> None:
        self._conn_id = conn_id
        self._connect = connect
        self._at_end = at_end
        self._failed, self._busy = failed, busy
        self._defaults = dict(defaults or {})
        self._prepare = prepare
        self._catalog: Catalog | None = None
        self._secrets: tuple[str, ...] = ()
        self.table = table

    def get(self) -> Catalog:
        """The catalog, opened once for a task.

        :raises DefinitionError: if the connection is not of an Iceberg catalog.
        """
        if self._catalog is None:
            from pyiceberg.catalog import load_catalog

            name, properties = properties_of(self._connect(self._conn_id))
            properties = {**self._defaults, **properties}
            self._secrets = tuple(secrets_of(properties))
            try:
                try:
                    with self.reporting("open"):
                        catalog = load_catalog(name, **properties)
                except self._busy:
                    # If two processes make the tables of a new SQL catalog at once, one is refused, and finds the
                    # tables when it tries again.
                    with self.reporting("open"):
                        catalog = load_catalog(name, **properties)
            except MicroBatchError:
                raise
            except (ValueError, KeyError, ImportError) as error:
                # Not chained: an error of an address parser repeats the text, with the secrets in it.
                raise DefinitionError(
                    f"connection {self._conn_id!r} is none of an Iceberg catalog: {self._without_secrets(error)}"
                ) from None
            self._at_end(catalog.close)
            if self._prepare is not None:
                self._prepare(catalog)
            self._catalog = catalog
        return self._catalog

    def load(self) -> Table | None:
        """The table as it is now; None if the catalog has no table of this name."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ValidationError

        with self.reporting("read"):
            catalog = self.get()
            try:
                return catalog.load_table(self.table)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
            except (ValidationError, ValueError) as error:
                # Such as a column of a type that pyiceberg does not know yet.
                raise self._failed(
                    f"cannot read the Iceberg table {self.table}: pyiceberg does not understand its metadata: "
                    f"{self._without_secrets(' '.join(str(error).split()))}"
                ) from None

    @contextmanager
    def reporting(self, doing: str) -> Iterator[None]:
        """Raise errors of the catalog, and of files of the table, as the error classes that the caller gave, without
        secrets."""
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, RESTError
        from requests import RequestException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (MicroBatchError, CommitFailedException):
            raise
        except (RequestException, SQLAlchemyError, RESTError, CommitStateUnknownException) as error:
            raise self._unanswered(doing, error) from None
        except _metastore_errors("TTransportException", "TApplicationException") as error:
            raise self._unanswered(doing, error) from None
        except _metastore_errors("TException") as error:
            said = getattr(error, "message", None) or error
            raise self._failed(
                f"cannot {doing} the Iceberg table {self.table}: {type(error).__name__}: {self._without_secrets(said)}"
            ) from None
        except OSError as error:
            raise self._failed(
                f"cannot {doing} the Iceberg table {self.table}: {self._without_secrets(error)}"
            ) from None

    def _unanswered(self, doing: str, error: Exception) -> MicroBatchError:
        what = f"cannot {doing} the Iceberg table {self.table} of connection {self._conn_id!r}"
        return self._busy(f"{what}: {type(error).__name__}: {self._without_secrets(error)}")

    def _without_secrets(self, error: object) -> str:
        text = str(error)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _metastore_errors(*names: str) -> tuple[type[Exception], ...]:
    """Errors of a Hive metastore's client, which is loaded where a catalog is one."""
    modules = (sys.modules.get("thrift.Thrift"), sys.modules.get("thrift.transport.TTransport"))
    return tuple(getattr(module, name) for module in modules for name in names if hasattr(module, name))


def properties_of(connection: Connection) -> tuple[str, dict[str, str]]:
    """Name and properties of a catalog, as pyiceberg takes them. The properties are those in the connection's extra;
    the connection's host is the ``uri``, its login and password are client id and secret.

    :raises DefinitionError: for a connection of another type, properties that are not text, or no address.
    """
    where = f"connection {connection.conn_id!r}"
    if connection.conn_type != "iceberg":
        raise DefinitionError(f"{where} is of type {type_of(connection)}, not 'iceberg'.")
    found = {}
    for key, value in connection.extra.items():
        if isinstance(value, bool):
            value = str(value).lower()
        if not isinstance(value, (str, int, float)):
            raise DefinitionError(f"{where}: {key!r:.100} in its extra must be a text: a property of the catalog.")
        found[key] = str(value)
    name = found.pop(NAME, connection.conn_id)
    if connection.host and "uri" not in found:
        host = connection.host if "://" in connection.host else f"https://{connection.host}"
        found["uri"] = host if connection.port is None else f"{host}:{connection.port}"
    if connection.login and connection.password and "credential" not in found:
        found["credential"] = f"{connection.login}:{connection.password}"
    if "uri" not in found and "type" not in found:
        raise DefinitionError(f"{where} says of no catalog where it is: give it a host, or 'uri' and 'type' in extra.")
    return name, found


def secrets_of(properties: Mapping[str, str]) -> Iterator[str]:
    """The secret texts among the properties, which no message may contain."""
    for key, value in properties.items():
        if _SECRET.search(key) and len(value) > 3:
            yield value
            yield from (part for part in value.split(":", 1)[1:] if len(part) > 3)
        if "://" in value:
            try:
                password = urlsplit(value).password
            except ValueError:
                yield value
                continue
            if password:
                yield from {value, password, unquote(password)}
