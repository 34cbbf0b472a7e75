"""P11: a poll that finds nothing, and a batch, with the checkpoint, the landing folder and the table in one bucket,
each beside spark-submit of an availableNow query there; and such a batch with a class archive. Requests of both, which
a bill counts, are the rows' notes.

The bucket is moto's, on loopback, which answers one request at a time: a service answers later, and many at once.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.engines import class_archive
from airflow_provider_microbatch.stores.object_store.s3a import s3a_settings
from benchmarks.harness import Row, paired, python_seconds
from benchmarks.p1_nothing_new import POLLS, SPARK
from benchmarks.p2_one_batch import BEGIN, EXECUTE, PEER, SCHEMA, TRANSFORM, land
from benchmarks.p3_available_now import QUERY
from tests.environments import jars
from tests.support.faulty_proxy import FaultyProxy
from tests.support.object_store import KEY, SECRET, client, endpoint
from tests.support.object_store_server import BUCKET

RUNS = int(os.environ.get("P11_RUNS", 5))

OURS = (
    BEGIN
    + """
home, lake, number, schema = sys.argv[1:]
pipeline = Pipeline(
    "bench", checkpoint=f"{lake}/checkpoint", transform="job.py:transform", sink=FileSink(f"{lake}/lake", packages=[]),
    sources={"orders": FileSource(f"{lake}/landing", format="json", schema=schema, packages=[])},
)
"""
    + EXECUTE
    + """
assert summary["state"] == "committed", summary
print(json.dumps(time.perf_counter() - started))
"""
)

Side = Callable[[str], float]
"""Does its work once, by the service at an address; returns its seconds."""


def measure() -> list[Row]:
    """The rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        bench = _Bench(Path(folder))
        nothing = Row(name="P11", what="a poll that finds nothing in a bucket / availableNow there", reach=1 / 50)
        batch = Row(name="P11b", what="our task in a bucket / availableNow by spark-submit there", reach=0.95)
        batch = bench.compare(batch, ours=bench.batch, peer=bench.query)
        nothing = bench.compare(nothing, ours=bench.poll, peer=bench.idle_query)
        archived = Row(name="P11c", what="our task there, with a class archive, / availableNow there", reach=0.95)
        bench.take_archive()
        return [nothing, batch, bench.compare(archived, ours=bench.batch, peer=bench.query)]


class _Bench:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._numbers = count()
        self._ours: dict[str, str] = {}
        (home / "job.py").write_text(TRANSFORM)
        (home / "query.py").write_text(QUERY)
        (home / "idle.py").write_text(SPARK)

    def take_archive(self) -> None:
        """Have our batches from here on, and no query, take a class archive."""
        class_archive.make(self._home / "classes", conf={})
        self._ours = {class_archive.EXTRA: str(self._home / "classes")}

    def compare(self, row: Row, *, ours: Side, peer: Side) -> Row:
        """Measure, and count the requests of one more of each."""
        url = endpoint()
        paired(row, ours=lambda: ours(url), peer=lambda: peer(url), runs=RUNS)
        counted = f"requests {_requests(ours)}, of the peer {_requests(peer)}"
        return replace(row, note=counted + (", of 23 polls" if ours == self.poll else ""))

    def batch(self, url: str) -> float:
        """Our task, over new files."""
        number = self._land("ours")
        given = (str(self._home), f"s3://lake@{BUCKET}/ours", str(number), SCHEMA)
        return python_seconds(OURS, *given, **self._environment(url, **self._ours))

    def poll(self, url: str) -> float:
        """Of our sensor, after :meth:`batch`."""
        return python_seconds(POLLS, f"s3://lake@{BUCKET}/ours", "perf_counter", **self._environment(url))

    def query(self, url: str) -> float:
        """An availableNow query, over new files."""
        self._land("peer")
        return python_seconds(
            PEER, str(self._home / "query.py"), f"s3a://{BUCKET}/peer", SCHEMA, **self._environment(url)
        )

    def idle_query(self, url: str) -> float:
        """One that finds nothing, but the first time."""
        told = (str(self._home / "idle.py"), f"s3a://{BUCKET}/peer/landing", f"s3a://{BUCKET}/peer/idle")
        return python_seconds(PEER, *told, **self._environment(url))

    def _land(self, side: str) -> int:
        number = next(self._numbers)
        folder = self._home / f"landing-{number}"
        land(folder, number)
        for path in folder.iterdir():
            client().upload_file(str(path), BUCKET, f"{side}/landing/{path.name}")
        return number

    def _environment(self, url: str, **of_spark: str) -> dict[str, str]:
        """Of a process.

        :param of_spark: the extra of the connection to Spark.
        """
        lake = {"conn_type": "aws", "login": KEY, "password": SECRET}
        lake_extra = {"endpoint_url": url, "region_name": "us-east-1"}
        settings = s3a_settings(
            Connection(conn_id="lake", conn_type="aws", login=KEY, password=SECRET, extra=lake_extra)
        )
        conf = {f"spark.hadoop.fs.s3a.bucket.{BUCKET}.{name}": value for name, value in settings.items()}
        conf["spark.jars"] = ",".join(map(str, jars("s3a-connector")))
        spark = {"conn_type": "spark", "host": f"local[{os.cpu_count()}]", "extra": of_spark}
        return {
            "AIRFLOW_HOME": str(self._home / "airflow"),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
            "AIRFLOW_CONN_LAKE": json.dumps({**lake, "extra": lake_extra}),
            "BENCH_CONF": json.dumps(conf),
        }


def _requests(side: Side) -> int:
    proxy = FaultyProxy(endpoint())
    proxy.start()
    try:
        with proxy.counted() as found:
            side(proxy.url)
    finally:
        proxy.stop()
    return Counter(found).total()
