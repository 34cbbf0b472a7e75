"""Notifications of a bucket: its service says which objects have come, so that a plan need not list them.

They are a hint only: a notification may be lost, late, doubled or out of order, and another may take it. So the objects
are looked at before they are planned, and every ``full_listing_seconds`` all are listed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from airflow_provider_microbatch.exceptions import DefinitionError

_ADDRESS = re.compile(r"sqs://(?P<conn_id>[A-Za-z0-9_.#-]*)/(?:(?P<account>[0-9]{12})/)?(?P<name>[A-Za-z0-9_-]{1,80})")


@dataclass(frozen=True, kw_only=True)
class QueueAddress:
    """A queue of Amazon SQS.

    :param conn_id: id of the Airflow connection (type ``aws``); None for the credentials of the environment.
    :param account: number of the account that owns the queue; None for the account of the credentials.
    """

    conn_id: str | None
    account: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``sqs://conn_id/queue``, ``sqs://conn_id/account/queue``, or either without ``conn_id``.

        :raises DefinitionError: if it is no such address. The message does not repeat text that might be a password.
        """
        found = _ADDRESS.fullmatch(text)
        if found is None:
            raise DefinitionError(
                "notifications must be the address of a standard queue: sqs://conn_id/queue, by an Airflow connection "
                "of type aws, or sqs:///queue for the environment's credentials. What stands before the queue's name "
                "is the id of a connection, and no key or password."
            )
        return cls(conn_id=found["conn_id"] or None, account=found["account"], name=found["name"])

    def __str__(self) -> str:
        return f"sqs://{self.conn_id or ''}/{f'{self.account}/' if self.account else ''}{self.name}"

    @property
    def who(self) -> str:
        """The credentials in use, for messages."""
        return "the environment's credentials" if self.conn_id is None else f"connection {self.conn_id!r}"
