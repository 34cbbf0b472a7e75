"""How Spark reaches a stage that takes credentials: each read and write of the stage passes them as options, which
reach Hadoop's file system and which no setting of the session shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_microbatch.runtime.secrets import secret

ACCESS = "access"
"""Key of a stage's arguments: the name of the secret that holds the options, as JSON; None or missing for none."""


def options_of(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The options for reading and writing below a stage.

    :param arguments: the arguments of the stage.
    :raises ValueError: if the launcher has not handed the secret over.
    """
    name = arguments.get(ACCESS)
    return dict(json.loads(secret(name))) if name else {}
