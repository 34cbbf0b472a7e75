"""The DAGs that ship as examples."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

from airflow_provider_microbatch.listeners.listener import FIELD

DAGS = Path(__file__).resolve().parents[2] / "dags"


@pytest.mark.airflow
def test_they_parse_without_touching_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MICROBATCH_HOME", str(tmp_path / "not-there"))
    monkeypatch.setenv("MICROBATCH_LAKE", "s3://lake@company-lake")
    bag = DagBag(dag_folder=DAGS, bundle_name="dags-folder")
    assert bag.import_errors == {}
    assert set(bag.dags) == {
        "microbatch_compact",
        "microbatch_janitor",
        "orders_continuous",
        "orders_scheduled",
        "orders_steps",
        "orders_table",
        "shop_job",
        "orders_delta",
        "orders_checked",
        "orders_iceberg",
        "orders_kafka",
        "orders_once",
        "orders_polled",
        "orders_s3",
        "orders_slot",
    }
    assert list(tmp_path.iterdir()) == []
    # The janitor forgets none of the others.
    used = {getattr(task, FIELD) for dag in bag.dags.values() for task in dag.tasks if hasattr(task, FIELD)}
    assert set(bag.dags["microbatch_janitor"].get_task("janitor").checkpoints) == used
