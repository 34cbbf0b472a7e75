"""How Spark reaches a stage that takes credentials: as options of each read and write of it, which reach Hadoop's file
system, and which no setting of the session shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_microbatch.runtime.secrets import secret

ACCESS = "access"
"""Of a stage's arguments: the name of the secret that holds the options, as JSON; None or missing for none."""


def options_of(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The options for what lies in a stage.

    :param arguments: of the stage.
    :raises ValueError: if whoever launched this has not handed them over.
    """
    name = arguments.get(ACCESS)
    return dict(json.loads(secret(name))) if name else {}
