"""Reads the shards of a Kinesis source's job without Spark: for engines of the tests that have none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def read(arguments: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row for each id of each record, whose data are a JSON list of ids; and what the runtime's reader tells.

    :param arguments: of the job's read. What there is to be secret is the tests' own, as the engine gets no secrets.
    """
    from airflow_provider_microbatch.runtime.channels import read_here
    from tests.support.kinesis import KEY, SECRET

    rows, told = read_here(arguments, {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET})
    return [{"id": one} for row in rows for one in json.loads(row[1])], told
