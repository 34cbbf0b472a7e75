"""Streaming queries that keep state, and jobs of ours, in one Spark: of this process, or of an environment that has
nothing but pyspark.

    python state_query.py <repository>

Each line on its input is a query, ``{"query": {…}}`` with the arguments of :func:`catch_up`, or a job of ours,
``{"job": text}``, or ``{"convert": {…}}`` with the fields of an :class:`OldState`. The answer is ``{"rows": […]}``,
which the query gave; ``{"ran": true}``; or ``{"error": text}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMAS = {
    "counts": "id long",
    "by_minute": "id long, at timestamp",
    "joined": "id long",
    "paid_in_sessions": "id long, at timestamp",
    "the_first": "id long",
    "visits": "id long, at timestamp",
    "visits_in_pandas": "id long, at timestamp",
    "reminders": "id long",
}
MODES = {**dict.fromkeys(SCHEMAS, "append"), "counts": "update", "reminders": "update"}


class Batch:
    """Of a batch what the transforms use."""

    def __init__(self, sources: Mapping[str, DataFrame]) -> None:
        self.sources = sources


def catch_up(
    spark: SparkSession,
    *,
    kind: str,
    landing: str,
    sources: Sequence[str],
    at: str,
    conf: Mapping[str, str],
    files: int,
) -> list[dict[str, Any]]:
    """Let a streaming query read what is there; the rows that it gave.

    :param kind: name of the transform.
    :param landing: folder of the sources' folders.
    :param at: the query's checkpoint.
    :param conf: settings of its session.
    :param files: so many are a batch at most.
    """
    from tests.state import transforms

    session = spark.newSession()
    settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC", **conf}
    for name, value in settings.items():
        session.conf.set(name, value)
    rows: list[dict[str, Any]] = []
    read = {
        name: session.readStream.schema(SCHEMAS[kind]).option("maxFilesPerTrigger", files).json(f"{landing}/{name}")
        for name in sources
    }
    made = getattr(transforms, kind)(Batch(read))
    query = made.writeStream.outputMode(MODES[kind]).foreachBatch(
        lambda frame, number: rows.extend(json.loads(text) for text in frame.toJSON().collect())
    )
    query.option("checkpointLocation", at).trigger(availableNow=True).start().awaitTermination()
    return rows


def main(repository: str) -> None:
    """Answer line by line, in one session."""
    sys.path.insert(0, repository)
    from pyspark.sql import SparkSession

    from airflow_provider_microbatch.runtime.app import run_job
    from airflow_provider_microbatch.runtime.converted_state import OldState, OldStore, convert_in
    from airflow_provider_microbatch.runtime.job import Job

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any]
        try:
            if "query" in asked:
                answer = {"rows": catch_up(spark, **asked["query"])}
            elif "convert" in asked:
                stores = [OldStore(**store) for store in asked["convert"].pop("stores")]
                convert_in(spark, OldState(**asked["convert"], stores=stores), is_over=lambda: False)
                answer = {"ran": True}
            else:
                run_job(spark.newSession(), Job.from_json(asked["job"]))
                answer = {"ran": True}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
