"""What the engines of tests write in place of Spark, in the form that a stage's writer would. The standard library is
enough for lines: the chaos engine starts without packages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.customers import COLUMNS, KEY, change_of

_COPY = "airflow_provider_microbatch.runtime.copy_lines:write"
_RECORDS = "airflow_provider_microbatch.runtime.kafka_records:write"


def write_part(
    stage: Path, writer: str, arguments: Mapping[str, Any], name: str, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """One file of a stage, of whole numbers by column. As Spark's committers do, folders that somebody removed are made
    again.

    :return: its line in the manifest.
    """
    stage.mkdir(parents=True, exist_ok=True)
    columns: Sequence[str] = ("id", "version")
    if KEY in arguments.get("needed", ()):
        # Of changes of a batch with one place PostgreSQL keeps one: the others could not be counted.
        columns, rows = COLUMNS, [change_of(row, at_once=1 if writer == _COPY else 8) for row in rows]
    if writer == _COPY:
        path, schema = stage / f"{name}.txt", stage / "_schema" / "part-0.txt"
        path.write_text("".join("\t".join(map(str, row.values())) + "\n" for row in rows))
        kinds = {**dict.fromkeys(columns, "bigint"), **({"_deleted": "boolean"} if columns == COLUMNS else {})}
        schema.parent.mkdir(exist_ok=True)
        schema.write_text(json.dumps({"columns": [*map(list, kinds.items())]}) + "\n")
    elif writer == _RECORDS:
        from tests.support.kafka_stages import write_file

        path = stage / f"{name}.parquet"
        write_file(path, [{"value": json.dumps(row).encode()} for row in rows], ["value"])
    elif arguments.get("format") == "parquet":
        from tests.sinks.delta_stages import write_marked_part

        path = stage / f"{name}.parquet"
        deleted = {"_deleted": False} if "delete_when" in arguments else {}
        write_marked_part(path, [{**deleted, **row} for row in rows], [*columns, *deleted], arguments["constants"])
    else:
        path = stage / f"{name}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"file": path.name, "bytes": path.stat().st_size}
