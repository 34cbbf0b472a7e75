"""A Spark Connect server with a real Hive metastore (Derby), within it or as a server of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pyspark

from tests.support.connect_server import connect_server, free_port, served

_WITH_LOCKS = Path(__file__).parent / "java" / "Metastore.java"


def metastore(folder: Path, *, thrift: str | None = None) -> AbstractContextManager[str]:
    """:param folder: metastore and warehouse go below it.
    :param thrift: address of the metastore, if it is a server of its own.
    :return: the server's URL.
    """
    where = {"hive.metastore.uris": thrift} if thrift else {"javax.jdo.option.ConnectionURL": _derby(folder)}
    return connect_server(
        folder,
        {
            "spark.sql.shuffle.partitions": "1",
            # A statement that adds several partitions makes a call for each, unless it says otherwise.
            "spark.sql.addPartitionInBatch.size": "1",
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": folder / "warehouse",
            **{f"spark.hadoop.{key}": value for key, value in where.items()},
        },
    )


@contextmanager
def hive_metastore(folder: Path, *, locks: bool = False) -> Iterator[str]:
    """The metastore that is in Spark's own jars, as a server.

    :param locks: whether it gives locks of tables, which Spark asks none for.
    :return: its address.
    """
    port, jars = free_port(), Path(pyspark.__path__[0]) / "jars" / "*"
    settings = {
        "javax.jdo.option.ConnectionURL": _derby(folder),
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": folder / "warehouse",
        "hive.async.log.enabled": "false",
        "datanucleus.connectionPoolingType": "none",
    }
    command = ["java", "-Xmx384m", "-XX:TieredStopAtLevel=1", "-cp", str(jars)]
    command += [f"-D{key}={value}" for key, value in settings.items()]
    main = str(_WITH_LOCKS) if locks else "org.apache.hadoop.hive.metastore.HiveMetaStore"
    command += [main, "-p", str(port)]
    with served(command, port, folder / "metastore.log"):
        yield f"thrift://127.0.0.1:{port}"


def _derby(folder: Path) -> str:
    return f"jdbc:derby:;databaseName={folder / 'metastore'};create=true"
