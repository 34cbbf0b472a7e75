"""Reads the channels of a job's source (shards of Kinesis, channels of a tunnel) without Spark: for engines of the
tests that have none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def read(arguments: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row for each id of each record, which has a JSON list of ids; and what the runtime's reader tells.

    :param arguments: of the job's read. What there is to be secret is the tests' own, as the engine gets no secrets.
    """
    from airflow_provider_microbatch.runtime.channels import read_here
    from tests.support import kinesis, tablestore

    if "tunnel_id" in arguments:
        rows, told = read_here(arguments, tablestore.SECRETS)
        lists = [column["value"] for row in rows for column in row[2]]
    else:
        rows, told = read_here(
            arguments, {"aws_access_key_id": kinesis.KEY, "aws_secret_access_key": kinesis.SECRET}
        )  # fmt: skip
        lists = [row[1] for row in rows]
    return [{"id": one} for ids in lists for one in json.loads(ids)], told
