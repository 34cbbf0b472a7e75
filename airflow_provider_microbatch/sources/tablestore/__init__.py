"""A tunnel of Tablestore as a source: the changes of a table, whose channels come to an end and get children."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from airflow_provider_microbatch.runtime.tablestore import SCHEMA
from airflow_provider_microbatch.sources import Source, SourceContext
from airflow_provider_microbatch.sources.channels import ChannelSource, Server

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,254}", re.ASCII)


@dataclass(frozen=True)
class TablestoreSource(ChannelSource):
    """Changes of a table, by a tunnel of type ``Stream``; each is read once, and a channel's changes after those of the
    channels that it was made of.

    Frames have the columns ``operation`` (``put``, ``update``, ``delete``), ``primaryKey`` (a map), ``columns`` (an
    array of what was put or deleted), ``channelId``, ``sequence`` and ``recordTimestamp``.

    :param table: name of the table.
    :param tunnel: name of the tunnel, which has no other reader.
    :param conn_id: Airflow connection: the endpoint as host (``https://instance.region.ots.aliyuncs.com``), the name of
        the instance as schema, access key id and secret as login and password, or in the extra as
        ``access_key_id`` and ``access_key_secret``; ``security_token`` in the extra.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    table: str
    tunnel: str
    _: KW_ONLY
    conn_id: str

    schema: ClassVar[str] = SCHEMA

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("table", "tunnel"):
            name = getattr(self, field)
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise self._wrong(
                    f"{field} must be a name, of letters, digits, '_' and '-', which begins with a letter or '_'; not "
                    f"{name!r:.300}"
                )
        if not isinstance(self.conn_id, str) or not self.conn_id.strip():
            raise self._wrong(f"conn_id must be the id of an Airflow connection; not {self.conn_id!r}")

    def server(self, context: SourceContext) -> Server:
        """Return the tunnel."""
        from airflow_provider_microbatch.sources.tablestore.server import Tunnel

        return Tunnel(self, connect=context.connect, clock_ms=context.clock_ms)

    def reads_as(self) -> Mapping[str, str | None]:
        """The reaction to changes that are gone."""
        return {"on_data_loss": self.on_data_loss}

    def refuses_beside(self, other: Source) -> str | None:
        """The reason if both sources read one tunnel, as far as their definitions tell."""
        if not isinstance(other, TablestoreSource) or self.location() != other.location():
            return None
        return (
            f"both read {self.location()}, which has one reader: each would move the other's place in it. Make one "
            "source of them, and use its frame twice; or create a tunnel for each."
        )

    def shares_with(self, other: Source) -> bool:
        """Whether both sources read changes of one table, as far as their definitions tell."""
        return isinstance(other, TablestoreSource) and (self.table, self.conn_id) == (other.table, other.conn_id)

    def location(self) -> str:
        """Connection, table and tunnel."""
        return f"tablestore://{self.conn_id}/{self.table}/{self.tunnel}"
