"""A Spark Connect server with a real Hive metastore (Derby)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from tests.support.connect_server import connect_server


def metastore(folder: Path) -> AbstractContextManager[str]:
    """:param folder: metastore and warehouse go below it.
    :return: the server's URL.
    """
    derby = f"jdbc:derby:;databaseName={folder / 'metastore'};create=true"
    return connect_server(
        folder,
        {
            "spark.sql.shuffle.partitions": "1",
            # A statement that adds several partitions makes a call for each, unless it says otherwise.
            "spark.sql.addPartitionInBatch.size": "1",
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": folder / "warehouse",
            "spark.hadoop.javax.jdo.option.ConnectionURL": derby,
        },
    )
