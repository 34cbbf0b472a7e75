"""A step that looks, and changes nothing: a batch must not be in a table that no batch can be taken out of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.sinks import Manifest, Sink, SinkContext
from airflow_provider_microbatch.sinks.manifest import only
from airflow_provider_microbatch.stores import Store


@dataclass(frozen=True, kw_only=True)
class NotIn:
    """Check that an attempt that slept has published nothing since the plan was made. It comes behind the drop of the
    attempt's stage for the table, from which on it never will; before the drop of those for other tables, without which
    the batch could not be brought to its end; and before the logs change: with the batch in the table, and no log that
    knows it, no batch of its number could be made, and none could be taken out.

    :param key: the batch, as ``str(BatchKey)``.
    :param epoch: the attempt.
    :param sink: definition of the sink.
    :param where: the table's address.
    :param why: the reason, for people.
    :param identity: identity of the batch that the attempt has made.
    """

    kind: ClassVar[str] = "is not in"

    key: str
    epoch: int
    sink: Mapping[str, Any]
    where: str
    why: str
    identity: Mapping[str, Any]

    @property
    def what(self) -> str:
        """The object of the step, for people."""
        return f"batch {self.key} of {self.where}"

    def apply(self, store: Store) -> None:
        """Look. :raises MaintenanceError: if the batch is in."""
        checkpoint = Checkpoint(store)
        identity, owner = BatchIdentity.from_dict(self.identity), checkpoint.identity()
        seen = Manifest(key=BatchKey.parse(self.key), epoch=self.epoch, identity=identity)
        own = owner.query_id if owner is not None else ""
        expected = only(seen, checkpoint=own, location=checkpoint.location, tables=checkpoint.tables.following_moves)
        if Sink.from_dict(self.sink).open(SinkContext()).seen(expected) is not None:
            raise MaintenanceError(
                f"batch {self.key} is in {self.where}: it was published while the command began, and no batch can be "
                "taken out of there. Nothing was rewound. Let the pipeline run: it finds the batch, and commits it."
            )
