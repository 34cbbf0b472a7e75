"""The server of tunnels that tests use speaks the protocol as the vendor's own client does: its tunnel workers, of the
SDK for Java, consume tunnels from it. Otherwise server and client would be our own invention on both sides.

The workers sign, check the signature and the digest of each answer, the checksums of each row, versions of channels,
and the order of checkpoints.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tablestore
from tests.support.tablestore_tunnels import BASE_AND_STREAM
from tests.support.tunnel_workers import tunnel_workers

pytestmark = pytest.mark.slow

A, B, C = (f"shard-{number:03}" for number in range(3))


def test_the_vendors_workers_consume_a_tunnel_with_splits_restarts_and_base_data(tmp_path: Path) -> None:
    table = tablestore.Table(shards=1)
    table.set_tunnel("page", 2)
    table.put(["1", "2", "3"])
    table.update({"id": "1"}, {"price": 1.5, "value": {"delete": True}, "old": {"delete_version": True}})
    with tunnel_workers(table, tmp_path) as workers:
        assert workers.ask("table") == 24
        assert workers.ask("describe", "changes") == {A: "OPEN"}
        assert workers.ask("create", "changes", "Stream") == "OTSTunnelExist"

        workers.ask("work", "changes")
        workers.until(lambda: len(workers.records) == 4)
        assert [(one["channel"], one["operation"], one["key"]) for one in workers.records] == [
            (A, "PUT", "1"),
            (A, "PUT", "2"),
            (A, "PUT", "3"),
            (A, "UPDATE", "1"),
        ]
        assert workers.records[-1]["columns"] == [
            "PUT price 1.5",
            "DELETE_ALL_VERSION value null",
            "DELETE_ONE_VERSION old null",
        ]
        assert workers.ask("checkpoint", "changes", A) == "OTSResourceGone", "it is the worker's"

        # A worker that starts again goes on where the other one said that it was.
        workers.ask("stop")
        table.put(["4"])
        table.arrange("split", A)
        table.put(["5"])
        table.put(["6"], at=0.9)
        assert workers.ask("describe", "changes") == {A: "OPEN", B: "WAIT", C: "WAIT"}
        assert workers.ask("checkpoint", "changes", A) == "OTSSequenceNumberNotMatch"
        workers.ask("work", "changes")
        workers.until(lambda: len(workers.records) == 7)
        assert [(one["channel"], one["key"]) for one in workers.records[4:5]] == [(A, "4")]
        assert {(one["channel"], one["key"]) for one in workers.records[5:]} == {(B, "5"), (C, "6")}
        workers.until(lambda: table.statuses() == {A: "TERMINATED", B: "OPEN", C: "OPEN"})

        # Another that comes is given a part of the channels, once the first one has let go of it.
        workers.ask("work", "changes")
        workers.until(lambda: None not in (owners := table.owners()) and len(set(owners)) == 2)
        table.put(["5"])
        table.put(["6"], at=0.9)
        workers.until(lambda: len(workers.records) == 9)
        assert {(one["channel"], one["key"]) for one in workers.records[7:]} == {(B, "5"), (C, "6")}
        workers.ask("stop")
        assert table.owners() == [None, None]

        # What is in the table comes before what changes.
        table.tunnel = "whole"
        table.create_tunnel(kind=BASE_AND_STREAM)
        table.put(["7"])
        workers.records.clear()
        workers.ask("work", "whole")
        workers.until(lambda: len(workers.records) == 8)
        assert [(one["channel"], one["key"]) for one in workers.records] == [
            *(("BaseData_0", str(number)) for number in range(1, 8)),
            (B, "7"),
        ]
