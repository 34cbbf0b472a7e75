"""Each DAG that README, docs and ``dags/`` show, on a real scheduler until its third run.

The README's goes by spark-submit, as it says. The others share the warm engine that the docs' drain names: what they
are tried for here is that run follows run, and six more spark-submits would take two minutes of a core.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.engines.server import CONNECTION
from airflow_provider_microbatch.stores.location import open_store
from tests.scheduler.documented import Documented, deploy_transforms, documented
from tests.scheduler.landings import Landing, buckets, connectors, in_bucket, in_tables, landing_of
from tests.scheduler.shop import Shop
from tests.support.orders_api import FolderServer, serving

# Its waits end when what they wait for comes; on a machine that is busy with other things that takes minutes.
pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.timeout(1200)]

RUNS = 3
SECONDS = 600.0
"""What all of them may take, beside each other, on a busy machine."""


@dataclass(kw_only=True)
class Watched:
    """A DAG that is on its way to its third run.

    :param dag: what is deployed.
    :param shop: the Airflow, and the folder that the DAG has for ``/data``.
    :param landing: what its source looks at; None if it makes no batches.
    """

    dag: Documented
    shop: Shop
    landing: Landing | None
    landed: list[list[int]] = field(default_factory=list)
    """The ids of each file; a file is a batch."""
    verdict: str | None = None
    """Empty for a DAG that had its third run, else what went wrong; None while it is on its way."""

    def land(self) -> None:
        """What nobody has planned yet; the next run, or slot, takes it."""
        assert self.landing is not None
        number = len(self.landed)
        ids = [2 * number, 2 * number + 1]
        self.landing.land(number, ids)
        self.landed.append(ids)

    def look(self, *, is_late: bool) -> bool:
        """Land what the next run needs, and say whether there is a verdict; then the DAG is paused.

        :param is_late: whether there is no more time.
        """
        if self.verdict is None:
            states = {run["dag_run_id"]: run["state"] for run in self.shop.airflow.runs(self.dag.dag_id)}
            failed = [run_id for run_id, state in states.items() if state == "failed"]
            succeeded = {run_id for run_id, state in states.items() if state == "success"}
            if self.landing is not None:
                succeeded &= self._planners()
            if failed:
                self.verdict = self._told(failed[0])
            elif len(succeeded) >= RUNS:
                self.verdict = self._compared()
            elif is_late:
                self.verdict = f"no third run that succeeds: {states}"
            if self.verdict is not None:
                self.shop.airflow.pause(self.dag.dag_id)
        return self.verdict is not None

    def _planners(self) -> set[str]:
        """The runs that have planned a batch. Until there are three, more lands for the next: it lands while the batch
        before it is under way, or after that, where a batch takes what has come until it is read."""
        checkpoint = Checkpoint(open_store(self.dag.checkpoint))
        planned = [(id, entry.run.run_id) for id, entry in checkpoint.offset_log.range() if entry.run is not None]
        if self.landing is not None and self.landing.ends_late:
            planned = [(id, run_id) for id, run_id in planned if checkpoint.commit_log.get(id) is not None]
        found = {run_id for _, run_id in planned}
        if len(found) < RUNS and len(planned) == len(self.landed):
            self.land()
        return found

    def _compared(self) -> str:
        """What is wrong with the rows in its table, or in each of several, as a reader of all of it finds them."""
        if not self.landed:
            return ""
        newest = self.landed[-1:] if self.dag.replaces else self.landed
        wanted = [id for ids in newest for id in ids]
        tables = dict(in_tables(self.shop.home / "lake"))
        if self.dag.bucket is not None:
            tables[self.dag.bucket] = in_bucket(self.dag.bucket)
        wrong = {name: found for name, found in tables.items() if found != wanted}
        return f"landed {wanted}, in the tables {wrong}" if wrong or not tables else ""

    def _told(self, run_id: str) -> str:
        """What became of each task of a run, with the logs of those that failed."""
        path, told = f"dags/{self.dag.dag_id}/dagRuns/{run_id}/taskInstances", [f"run {run_id} failed"]
        for task in self.shop.airflow.api("GET", path)["task_instances"]:
            told.append(f"{task['task_id']} {task['map_index']}: {task['state']}")
            if task["state"] == "failed":
                where = f"{path}/{task['task_id']}/logs/{task['try_number']}"
                log = self.shop.airflow.api("GET", where, map_index=task["map_index"], full_content=True)["content"]
                told += [json.dumps(line) for line in log]
        return "\n".join(told)


@pytest.fixture
def warm_engine(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Airflow knows it by the connection ``spark_connect``, as the docs name it."""
    monkeypatch.setenv("SPARK_CONF_DIR", shop.airflow.env["SPARK_CONF_DIR"])
    folder = shop.home / "engine"
    folder.mkdir(mode=0o700)
    try:
        has = f"spark.jars={','.join(map(str, connectors()))}"
        assert main(["engine", "start", "--dir", str(folder), "--master", "local[1]", "--conf", has]) == 0
        (connection,) = json.loads((folder / CONNECTION).read_text()).values()
        extra = connection.get("extra")
        stored = {**connection, "extra": json.dumps(extra) if isinstance(extra, dict) else extra}
        shop.airflow.api("POST", "connections", {"connection_id": "spark_connect", **stored})
        yield
    finally:
        assert main(["engine", "stop", "--dir", str(folder)]) == 0


@pytest.fixture
def orders_api() -> Iterator[str]:
    """An HTTP API of what lands, for the DAG that polls one."""
    with serving(FolderServer()) as server:
        yield server.url


@pytest.fixture
def deployed(shop: Shop, warm_engine: None, orders_api: str) -> Iterator[list[Watched]]:
    connections.find_by(buckets)  # of checkpoints, for who looks into them from here
    found = list(documented(shop.home / "documented", api=orders_api))
    files = {dag.dag_id: shop.airflow.dags / f"{dag.dag_id}.py" for dag in found}
    watched = []
    for dag in found:
        own = Shop(home=dag.folder, airflow=shop.airflow)
        watched.append(Watched(dag=dag, shop=own, landing=landing_of(dag.text, own)))
    deploy_transforms(shop.airflow.dags)
    for one in watched:
        for folder in one.dag.landings:
            (one.shop.home / "landing" / folder).mkdir(parents=True, exist_ok=True)
        if one.landing is not None:
            one.land()
        files[one.dag.dag_id].write_text(one.dag.text)
    yield watched
    for file in files.values():  # Airflow would parse them again and again under the tests that follow
        file.unlink()


def _through(watched: list[Watched], *, until: float) -> bool:
    is_late = time.monotonic() > until
    looks = [one.look(is_late=is_late) for one in watched]  # at each of them
    return all(looks)


def test_each_documented_dag_runs_to_its_third_run_and_its_rows_are_in_the_table_once(
    shop: Shop, deployed: list[Watched]
) -> None:
    for watched in deployed:
        shop.airflow.unpause(watched.dag.dag_id)
    through = partial(_through, deployed, until=time.monotonic() + SECONDS)
    shop.airflow.wait_for(through, timeout=2 * SECONDS, what="a verdict on each DAG", every=2.0)
    wrong = {watched.dag.dag_id: watched.verdict for watched in deployed if watched.verdict}
    assert not wrong, "\n\n".join(f"{dag_id}: {verdict}" for dag_id, verdict in wrong.items())
