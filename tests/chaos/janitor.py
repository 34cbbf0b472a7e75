"""One run of the janitor as a process of its own, which may die at a point: ``python -m tests.chaos.janitor ROOT
[POINT]``."""

from __future__ import annotations

import sys
from pathlib import Path

from airflow_provider_microbatch import configuration
from airflow_provider_microbatch.cli import main as microbatch
from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from tests.chaos.points import Points
from tests.chaos.setting import Setting


def main(root: Path, point: str | None) -> int:
    """What ``microbatch janitor`` does, on the checkpoint of the pipeline in ``root``."""
    setting = Setting.load(root)
    configuration.find_by = lambda connect: None  # the system says how its connections are found, and no Airflow
    Points(point, action="kill", root=root, who="janitor").install(
        SparkSubmitEngine, setting.sink_class, setting.publish_steps
    )
    return microbatch.main(["janitor", setting.pipeline().checkpoint, "--grace", "0"])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
