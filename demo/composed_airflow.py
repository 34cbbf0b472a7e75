"""An Airflow of docker-compose.yaml, each component on a machine of its own; two of them are Celery's workers."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import psutil

from demo.composition import Composition
from demo.machines import Machine, processes_of
from demo.processes import Victim, java_among
from demo.running_airflow import RunningAirflow

_API_SERVER = "airflow-api-server"
_SPARK_DAEMONS = ("org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker")


class ComposedAirflow(RunningAirflow):
    """:param composition: its services.
    :param watched_at: the port of this machine by which a browser reaches the UI.
    """

    def __init__(self, composition: Composition, *, watched_at: int) -> None:
        super().__init__(home=composition.home)
        self._composition = composition
        self._watched_at = watched_at

    @property
    def api_server(self) -> tuple[str, int]:
        """Address and port of the API server, on the machines' network."""
        return self._composition.machines[_API_SERVER].address, 8080

    @property
    def url(self) -> str:
        """Address of API server and UI."""
        host, port = self.api_server
        return f"http://{host}:{port}"

    def grid_url(self, dag_id: str) -> str:
        """Address of a DAG's grid view, for a browser of this machine."""
        return f"http://127.0.0.1:{self._watched_at}/dags/{dag_id}"

    def start(self) -> None:
        """Start all services, each once those that it depends on are so far, and wait until Airflow is healthy."""
        try:
            for name in self._composition.order():
                self.start_component(name)
            self.wait_for(self.healthy, timeout=120.0, what="a healthy Airflow")
        except BaseException:
            self.stop()
            raise

    def start_component(self, name: str) -> None:
        """Start a service; its machine too, if that is off."""
        process = self._composition.start(name)
        self._killed.discard(name)
        if process.poll() != 0:
            self._processes[name] = process

    def stop(self) -> None:
        """Everything ends, with its machine. Idempotent."""
        self._killed.update(self._processes)
        self._composition.stop()

    def processes(self) -> list[psutil.Process]:
        """All on its machines, with Spark's and the servers'."""
        return processes_of(self._composition.machines.values())

    def drivers_and_executors(self) -> list[psutil.Process]:
        """The Java of batches: not that of Spark's master and worker."""
        return [java for java in java_among(self.processes()) if not _is_daemon(java)]

    def kill_worker(self, java: psutil.Process) -> Victim:
        """SIGKILL the worker that runs the task of a driver, and the task: all on its machine but the driver."""
        machine = self._machine_of(java)
        spared = {java.pid, *(child.pid for child in java.children(recursive=True))}
        self._killed.add(machine.name)
        ended = 0
        # A process may start another while we look, so look until there is none.
        while victims := [process for process in machine.processes() if process.pid not in spared]:
            ended += len(victims)
            for process in victims:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            psutil.wait_procs(victims, timeout=1.0)
        how = f"SIGKILL to {ended} processes of {machine.name}); its Spark ({java.pid}) runs on"
        return Victim(what="the worker", how=f"({how}", loses_host=True)

    def kill_machine(self, java: psutil.Process) -> Victim:
        """The machine of a driver, with worker, task and driver, ends at once; its disk is lost."""
        machine = self._machine_of(java)
        self._killed.add(machine.name)
        machine.crash()
        return Victim(what="the machine", how=f"({machine.name}: worker, task and Spark)", loses_host=True)

    def task_logs(self, dag_id: str, task_id: str) -> dict[str, str]:
        """What the API server shows of each try of a task that has ended well, by where its log is to be."""
        shown = {}
        for run in self.runs(dag_id):
            run_id = run["dag_run_id"]
            task = self.task_instances(dag_id, run_id).get(task_id)
            if task is not None and task["state"] == "success":
                place = f"dag_id={dag_id}/run_id={run_id}/task_id={task_id}/attempt={task['try_number']}.log"
                shown[place] = self.task_log(dag_id, run_id, task_id, task["try_number"])
        return shown

    def written_files(self) -> list[Path]:
        """Every file that a service has written on the disk of its machine, or on a volume."""
        return list(self._composition.written_files())

    def _machine_of(self, process: psutil.Process) -> Machine:
        return next(machine for machine in self._composition.machines.values() if process in machine.processes())


def _is_daemon(java: psutil.Process) -> bool:
    try:
        return any(word in _SPARK_DAEMONS for word in java.cmdline())
    except psutil.Error:
        return False
