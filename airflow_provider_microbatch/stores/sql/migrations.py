"""The tables of a schema: created by the first write, and migrated to the current version by the first process to come.

=====================  ================================================================================================
microbatch_entries     ``key`` (see :mod:`.keys`), ``data``, ``token`` (another one for each put), ``modified_ms``
microbatch_version     a row for each migration that was applied: ``version``, ``applied_ms``
=====================  ================================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores.sql.address import Address
from airflow_provider_microbatch.stores.sql.kind import Kind

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.engine import Connection as Session

_VERSIONS = (
    "CREATE TABLE IF NOT EXISTS {schema}.microbatch_version (version integer PRIMARY KEY, applied_ms bigint NOT NULL)"
)
_APPLIED = "INSERT INTO {schema}.microbatch_version VALUES (:version, {clock})"


def are_there(session: Session, kind: Kind, address: Address) -> bool:
    """Whether there are tables; tables of an older version are migrated to the current one.

    :raises CheckpointError: if a newer version of this package has migrated them.
    """
    version = _version(session, kind, address)
    if 0 < version < len(kind.migrations):
        migrate(session, kind, address)
    return version > 0


def migrate(session: Session, kind: Kind, address: Address) -> None:
    """Bring the tables to the current version. Of many processes that start at once one migrates, and the others find
    the migration done. If the process is killed in between, nothing is changed.

    :raises CheckpointError: if a newer version of this package has migrated them.
    """
    today = len(kind.migrations)
    # A user that only uses the tables needs no right to create them.
    if _version(session, kind, address) == today:
        return
    with kind.migrating(session, address):
        version = _version(session, kind, address)
        if version == 0:
            kind.make_schema(session, address)
            session.execute(in_schema(session, _VERSIONS, address))
        for number, statements in enumerate(kind.migrations[version:], start=version + 1):
            for statement in statements:
                session.execute(in_schema(session, statement, address))
            applied = in_schema(session, _APPLIED.replace("{clock}", kind.clock_ms), address)
            session.execute(applied, {"version": number})


def in_schema(session: Session, statement: str, address: Address) -> sqlalchemy.TextClause:
    """Return a statement in which ``{schema}`` is replaced by the schema of the address."""
    import sqlalchemy

    quoted = session.dialect.identifier_preparer.quote_identifier(address.schema)
    return sqlalchemy.text(statement.replace("{schema}", quoted.replace(":", r"\:")))


def _version(session: Session, kind: Kind, address: Address) -> int:
    version, today = kind.version(session, address), len(kind.migrations)
    if version > today:
        raise CheckpointError(
            f"the tables of {address} are of version {version}, and this version of the package knows {today}: a newer "
            "one has migrated them. Install that one here too: airflow-provider-microbatch."
        )
    return version
