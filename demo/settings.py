"""Where a run of the demo takes place: on this machine, in folders; or on several that share no disk, in a bucket."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from demo.composed_airflow import ComposedAirflow
from demo.composition import ROOT, Composition, services
from demo.drive import Kill
from demo.local_airflow import LocalAirflow
from demo.machines import HERE, enter_own_network, leave_own_network
from demo.places import Folders, InBucket, Place, bucket
from demo.processes import Victim, kill_driver, kill_task_of
from demo.proof import Proof, janitor_leaves_nothing, logs_are_in, no_disk_has
from demo.relay import relay
from demo.running_airflow import RunningAirflow

_DAGS = ROOT / "dags"
_SPARK_DEFAULTS = """\
spark.driver.memory 512m
spark.driver.extraJavaOptions -XX:+UseSerialGC -XX:TieredStopAtLevel=1
spark.ui.enabled false
spark.sql.shuffle.partitions 4
"""

# Half of the cluster's cores for each application: a driver that nobody can stop keeps its own until it ends.
_SPARK_CLUSTER = """\
spark.cores.max 1
spark.executor.memory 512m
spark.executor.extraJavaOptions -XX:+UseSerialGC -XX:TieredStopAtLevel=1
spark.jars {jars}
"""

_OF_COMPOSED = {
    # A death is noticed after seconds, not minutes.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "5",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
    # For Spark's master and worker too: they end before what Java's second compiler has made is of use.
    "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    # The files stay as they are.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
    # A second of idling between two loops is most of a micro-batch's overhead.
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
}
_LEFT_ALONE_SECONDS = 180.0
"""How long a driver may take to come to its end that nobody could stop."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """:param airflow: started by its ``with`` block.
    :param place: where the data lie.
    :param kills: who is killed, by the batch's id.
    :param tidy: when all batches are in, before anything is proved.
    :param more_proofs: what else this setting claims.
    """

    airflow: RunningAirflow
    place: Place
    kills: Mapping[int, Kill]
    tidy: Callable[[], list[Proof]] = list
    more_proofs: Callable[[], list[Proof]] = list


@contextmanager
def on_one_machine(home: Path, *, batches: int) -> Iterator[Setting]:
    """Everything in folders below ``home``; the task of one batch is killed."""
    env = {
        "MICROBATCH_HOME": str(home),
        "SPARK_CONF_DIR": str(_spark_conf(home, _SPARK_DEFAULTS)),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[*]"}),
    }
    airflow = LocalAirflow(home=home / "airflow", dags=_DAGS, env=env)
    yield Setting(airflow=airflow, place=Folders(home), kills={batches // 2: _task_of(airflow)})


@contextmanager
def without_shared_disk(home: Path, *, batches: int) -> Iterator[Setting]:
    """What docker-compose.yaml starts with the profile celery, each service on a machine of its own, and a bucket. Of
    the batches behind the first a worker is killed whose driver lives on, a driver, a machine, a task."""
    from tests.environments import jars

    connector = ",".join(str(jar.resolve()) for jar in jars("s3a-connector"))
    door = socket.create_server(("127.0.0.1", 0))  # on this machine's network, for who watches
    machines = home / "machines"
    machines.mkdir()
    enter_own_network(machines)
    try:
        with bucket(HERE) as place:
            composition = Composition(
                services(_variables(place)),
                home=home,
                env={**_OF_COMPOSED, "MICROBATCH_SPARK_HAS_S3A": "yes", "SPARK_CONF_DIR": "/opt/spark-conf"},
                volumes={"/opt/spark-conf": _spark_conf(home, _SPARK_DEFAULTS + _SPARK_CLUSTER.format(jars=connector))},
            )
            airflow = ComposedAirflow(composition, watched_at=door.getsockname()[1])
            relay(door, to=airflow.api_server)
            order: list[Kill] = [airflow.kill_worker, kill_driver, airflow.kill_machine, _task_of(airflow)]
            yield Setting(
                airflow=airflow,
                place=place,
                kills=dict(zip(range(1, batches), order, strict=False)),
                tidy=lambda: _end_what_was_left_alone(airflow, place),
                more_proofs=lambda: _nothing_shared(airflow, place),
            )
    finally:
        leave_own_network(machines)


def _end_what_was_left_alone(airflow: ComposedAirflow, place: InBucket) -> list[Proof]:
    """A driver whose worker was killed runs on where nobody can stop it; what it writes is for the janitor."""
    airflow.wait_for(
        lambda: not airflow.drivers_and_executors(), timeout=_LEFT_ALONE_SECONDS, what="the end of all drivers"
    )
    return [janitor_leaves_nothing(place.checkpoint)]


def _nothing_shared(airflow: ComposedAirflow, place: InBucket) -> list[Proof]:
    objects = [key for folder in ("landing/", "lake/", "checkpoints/") for key in place.keys(folder)]
    return [
        no_disk_has(objects, airflow.written_files()),
        logs_are_in(place.keys("logs/"), airflow.task_logs(place.dag_id, "micro_batch")),
    ]


def _variables(place: InBucket) -> dict[str, str]:
    return {
        "MICROBATCH_LAKE": place.address,
        "MICROBATCH_LAKE_CONNECTION": place.connection,
        "MICROBATCH_REMOTE_LOGS": place.log_folder,
    }


def _task_of(airflow: RunningAirflow) -> Kill:
    def kill_task(java: psutil.Process) -> Victim:
        return kill_task_of(java, airflow.processes())

    return kill_task


def _spark_conf(home: Path, defaults: str) -> Path:
    conf = home / "spark"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(defaults)
    return conf
