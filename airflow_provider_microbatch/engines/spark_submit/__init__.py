"""The engine that launches each attempt by spark-submit, through the Spark provider's own hook.

Tested for real with local masters, on standalone clusters and on YARN; not on Kubernetes: see ``kubernetes``.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.engines import class_archive, kubernetes, packaging, processes
from airflow_provider_microbatch.engines.environment import (
    SPARK_SUBMIT,
    check_versions,
    launch_environment,
    spark_defaults,
)
from airflow_provider_microbatch.engines.handles import SubmitHandle, readable
from airflow_provider_microbatch.engines.lookup import Wanted
from airflow_provider_microbatch.engines.masters import Target, target_of
from airflow_provider_microbatch.engines.spark_submit.error import submit_error, yarn_error
from airflow_provider_microbatch.engines.yarn import Yarn
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import Code, EngineState, Handle
from airflow_provider_microbatch.runtime.job import Job, Requirements

log = logging.getLogger(__name__)

TAG = "spark.microbatch.tag"
_OWN = ("properties_file", "deploy_mode", "env_vars", "files", "spark_binary")


class SparkSubmitEngine:
    """Runs each job as one spark-submit application.

    :param conn_id: Airflow connection of type ``spark``.
    :param conf: Spark settings of the application. They travel in a private file, so they may hold secrets.
    :param properties_file: a properties file whose settings are kept; without it, those of ``spark-defaults.conf`` are.
    :param deploy_mode: ``client`` or ``cluster``; overrides the connection's.
    :param env_vars: environment variables of the driver.
    :param files: further files for ``--files``, comma-separated.
    :param spark_binary: name of the spark-submit program; overrides the connection's.
    :param grace_seconds: seconds that a cancelled application may take to end by itself before it is killed.
    :param hook_arguments: further arguments of
        :class:`~airflow.providers.apache.spark.hooks.spark_submit.SparkSubmitHook`, such as ``jars``, ``packages``,
        ``executor_memory``.
    """

    name = "spark-submit"

    def __init__(
        self,
        *,
        conn_id: str = "spark_default",
        conf: Mapping[str, Any] | None = None,
        properties_file: str | None = None,
        deploy_mode: str | None = None,
        env_vars: Mapping[str, Any] | None = None,
        files: str | None = None,
        spark_binary: str | None = None,
        grace_seconds: float = 10.0,
        hook_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._conn_id = conn_id
        self._conf = {key: str(value) for key, value in (conf or {}).items()}
        self._properties_file = properties_file
        self._deploy_mode = deploy_mode
        self._env_vars = {key: str(value) for key, value in (env_vars or {}).items()}
        self._files = files
        self._spark_binary = spark_binary
        self._grace = grace_seconds
        self._hook_arguments = dict(hook_arguments or {})
        self._class_archive: str | None = None
        self._launches: dict[str, _Launch] = {}

    @classmethod
    def of_connection(cls, wanted: Wanted) -> SparkSubmitEngine:
        """The engine for a connection. Arguments that the engine itself does not know are passed to its hook."""
        own = {name: value for name, value in wanted.arguments.items() if name in _OWN}
        rest = {name: value for name, value in wanted.arguments.items() if name not in _OWN}
        return cls(
            conn_id=wanted.conn_id, conf=wanted.conf, grace_seconds=processes.STOP_SECONDS, **own, hook_arguments=rest
        )

    def check(self) -> None:
        """Look whether spark-submit can be launched. Starts nothing.

        :raises EngineError: if the connection is missing, or Spark accepts no Python application there.
        :raises EnvironmentMismatchError: if pyspark and pyspark-client differ.
        """
        self._usable()

    def handle(self, *, pipeline: str, key: BatchKey, epoch: int) -> Handle:
        """Choose the handle. Whatever Spark or this machine would refuse is refused here, before the attempt is
        recorded.

        :raises EngineError: if the connection is missing, or Spark accepts no Python application there.
        :raises EnvironmentMismatchError: if pyspark and pyspark-client differ.
        """
        target = self._usable()
        made = {
            "engine": self.name,
            "host": socket.gethostname(),
            "tag": processes.new_tag(),
            "application": f"{pipeline} batch {key} attempt {epoch}",
            "master": target.master,
            "deploy_mode": target.deploy_mode,
            "namespace": target.namespace,
        }
        return readable(made, of=SubmitHandle, conn_id=self._conn_id)

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        check_versions()
        target = self._target()
        target.check()
        environment = self._environment(target)
        binary = self._spark_binary or SPARK_SUBMIT
        base = self._base(environment)
        if self._class_archive:
            environment = class_archive.with_archive(self._class_archive, environment, binary=binary)
        tag = handle["tag"]
        if code.secrets and target.deploy_mode == "cluster":
            # The driver is on another host: the secrets would travel as --files do, and be left on that host.
            raise EngineError(
                f"{handle['application']} needs secrets ({', '.join(sorted(code.secrets))}), and in deploy mode "
                "'cluster' there is no private way to hand them over. Use deploy mode 'client', or a Spark "
                "Connect server."
            )
        shipment = packaging.pack(
            tag=tag,
            job=job,
            code_files=code.files,
            conf=self._settings(target, tag),
            base=base,
            secrets=code.secrets,
        )
        # A driver on this host reads the job file where it lies.
        carried = str(shipment.job) if target.deploy_mode == "cluster" else None
        try:
            # Built here, in the caller's thread: the hook resolves the connection, through the task's supervisor.
            hook = SparkSubmitHook(
                conn_id=self._conn_id,
                # The hook puts these settings on the command line: only what any process finds the driver by. What the
                # connection says of the namespace would win over the file, and over what the handle says.
                conf={TAG: tag, **({kubernetes.NAMESPACE: handle["namespace"]} if target.is_kubernetes else {})},
                properties_file=str(shipment.properties),
                files=",".join(part for part in (carried, self._files) if part) or None,
                py_files=",".join(str(path) for path in shipment.py_files),
                application_args=[str(shipment.job)],
                name=handle["application"],
                deploy_mode=target.deploy_mode,
                spark_binary=self._spark_binary,
                **_with_required(self._hook_arguments, job.requires, self._conf, base),
            )
        except Exception as error:
            packaging.unpack(tag)
            raise EngineError(f"spark-submit for {handle['application']} could not be set up: {error}") from error
        launch = _Launch(hook, str(shipment.application), environment, tag)
        self._launches[tag] = launch
        launch.start()

    def result(self, handle: Handle) -> None:
        launch = self._launches.get(handle["tag"])
        if launch is None:
            raise EngineError(f"{handle['application']} was not started by this process, so it cannot be waited for.")
        launch.wait()
        if launch.error is not None:
            raise self._error(handle, launch.error, stopped=launch.forbidden) from launch.error

    def poll(self, handle: Handle) -> EngineState:
        checked = SubmitHandle.of(handle, engine=self.name)
        tag, target = checked.tag, checked.target
        launch = self._launches.get(tag)
        if launch is not None:
            if launch.is_alive():
                return EngineState.RUNNING
            return EngineState.SUCCEEDED if launch.error is None else EngineState.FAILED
        if target.is_kubernetes and target.deploy_mode == "cluster":
            return kubernetes.driver_state(tag, target)
        if _is_here(checked) and processes.find(tag):
            return EngineState.RUNNING
        lives = _lives_on_yarn(checked) and bool(self._yarn(target).applications(tag))
        return EngineState.RUNNING if lives else EngineState.UNKNOWN

    def cancel(self, handle: Handle) -> bool:
        """Stop the application if it runs; none of its processes is running when this returns.

        :raises HandleError: if ``handle`` is no handle of this engine; nothing was done then.
        :raises EngineError: if the application could not be stopped, or its cluster cannot be reached from here.
        """
        checked = SubmitHandle.of(handle, engine=self.name)
        tag, target = checked.tag, checked.target
        launch = self._launches.get(tag)
        stopped = launch is not None and launch.is_alive()
        if launch is not None:
            launch.forbid()
        if _is_here(checked):
            stopped = self._end_here(tag, launch) or stopped
            packaging.unpack(tag)
        if _lives_on_yarn(checked):
            if launch is None or not launch.ended_well:
                known = launch.application_on_yarn if launch is not None and stopped else None
                stopped = self._yarn(target).kill(tag, known=known) or stopped
        elif target.is_kubernetes and target.deploy_mode == "cluster":
            stopped = kubernetes.end_driver(tag, target) or stopped
        elif not _is_here(checked):
            log.warning(
                "%s was started on host %s and cannot be stopped from here; it is fenced and cannot publish",
                checked.application,
                checked.host,
            )
        if stopped:
            log.info("Stopped %s (%s)", checked.application, tag)
        return stopped

    def _end_here(self, tag: str, launch: _Launch | None) -> bool:
        try:
            stopped = processes.end_all(tag, grace=self._grace)
            while launch is not None and launch.is_alive():
                # The launcher may have been between its last check and its fork; it ends when its child does.
                stopped = processes.end_all(tag, grace=self._grace) or stopped
                launch.join(timeout=0.1)
        except TimeoutError as error:
            raise EngineError(f"Spark could not be stopped: {error}.") from error
        return stopped

    def _usable(self) -> Target:
        check_versions()
        target = self._target()
        target.check()
        environment = self._environment(target)
        if target.is_yarn:
            self._yarn(target).check()
        if target.is_kubernetes:
            kubernetes.check_client()
        return replace(target, namespace=self._namespace(target, environment))

    def _namespace(self, target: Target, environment: Mapping[str, str]) -> str | None:
        """Where the driver's pod is made; chosen once, for Spark and for who looks for the pod."""
        if not target.is_kubernetes:
            return None
        name = kubernetes.NAMESPACE
        named = self._conf.get(name) or target.namespace or packaging.property_of(self._base(environment), name)
        return named or kubernetes.DEFAULT_NAMESPACE

    def _base(self, environment: Mapping[str, str]) -> Path | None:
        """The properties file whose settings are kept."""
        if self._properties_file:
            return Path(self._properties_file)
        return spark_defaults(environment, binary=self._spark_binary or SPARK_SUBMIT)

    def _target(self) -> Target:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
        from airflow.sdk.exceptions import AirflowException

        try:
            connection = SparkSubmitHook.get_connection(self._conn_id)
        except AirflowException as error:
            raise EngineError(
                f"the connection {self._conn_id!r} cannot be used: {error}. Make it: airflow connections add "
                f"{self._conn_id} --conn-type spark --conn-host 'local[*]'"
            ) from error
        if self._spark_binary is None:
            self._spark_binary = connection.extra_dejson.get("spark-binary")
        self._class_archive = connection.extra_dejson.get(class_archive.EXTRA)
        return target_of(connection, deploy_mode=self._deploy_mode)

    def _environment(self, target: Target) -> dict[str, str]:
        return launch_environment(
            os.environ, extra=self._env_vars, binary=self._spark_binary or SPARK_SUBMIT, is_local=target.is_local
        )

    def _error(self, handle: Handle, error: Exception, *, stopped: bool) -> EngineError:
        checked = SubmitHandle.of(handle, engine=self.name)
        if checked.target.is_yarn and not stopped:
            try:
                failure = self._yarn(checked.target).failure(checked.tag)
            except EngineError as unknown:
                log.warning("YARN cannot be asked how %s ended: %s", checked.application, unknown)
            else:
                # A driver beside the task, in client mode, that fails by itself leaves an application that succeeded.
                if failure is not None:
                    return yarn_error(checked.application, failure)
        return submit_error(checked.application, error, stopped=stopped)

    def _yarn(self, target: Target) -> Yarn:
        return Yarn(environment=self._environment(target), binary=self._spark_binary or SPARK_SUBMIT)

    def _settings(self, target: Target, tag: str) -> dict[str, str]:
        """The application's settings, the operator's last; none of them is put on the command line."""
        settings = {"spark.log.level": "WARN"}
        if target.is_yarn:
            # A second driver of one attempt would refuse to write, because the first driver's stage exists.
            settings["spark.yarn.maxAppAttempts"] = "1"
            settings.update({f"spark.yarn.appMasterEnv.{key}": value for key, value in self._env_vars.items()})
        if target.is_kubernetes:
            settings[f"spark.kubernetes.driver.label.{kubernetes.LABEL}"] = tag
            settings.update({f"spark.kubernetes.driverEnv.{key}": value for key, value in self._env_vars.items()})
        settings.update(self._conf)
        if target.is_yarn:
            # Without the wait, an application that has only been submitted would count as one that ended well.
            settings["spark.yarn.submit.waitAppCompletion"] = "true"
            settings["spark.yarn.tags"] = ",".join(part for part in (self._conf.get("spark.yarn.tags"), tag) if part)
        if target.is_kubernetes:
            settings["spark.kubernetes.submission.waitAppCompletion"] = "true"  # as on YARN
        return settings


def _is_here(handle: SubmitHandle) -> bool:
    return handle.host == socket.gethostname()


def _lives_on_yarn(handle: SubmitHandle) -> bool:
    """Whether YARN alone can tell of the driver, and end it. In client mode the driver is a process of the host that
    called spark-submit, and its application ends with it."""
    return handle.target.is_yarn and (handle.target.deploy_mode == "cluster" or not _is_here(handle))


def _with_required(
    arguments: Mapping[str, Any], requires: Requirements, conf: Mapping[str, str], base: Path | None
) -> dict[str, Any]:
    """The hook's arguments, extended by what the batch's reader and writer need. What the user names is kept, whether
    the user gave it as an argument or as a setting, since an argument would replace the setting."""
    joined = {}
    for name, setting, needed in (
        ("jars", "spark.jars", requires.jars),
        ("packages", "spark.jars.packages", requires.packages),
    ):
        if needed:
            own = arguments.get(name) or conf.get(setting) or packaging.property_of(base, setting)
            joined[name] = ",".join(filter(None, [own, *needed]))
    return {**arguments, **joined}


class _Launch(threading.Thread):
    """One call of the hook's ``submit``, which returns when the application has ended."""

    def __init__(self, hook: Any, application: str, environment: Mapping[str, str], tag: str) -> None:
        super().__init__(name=tag, daemon=True)
        self.error: Exception | None = None
        self._hook = hook
        self._application = application
        self._environment = dict(environment)
        self._tag = tag
        self._forbidden = threading.Event()

    def forbid(self) -> None:
        """Prevent the launch if it has not happened yet."""
        self._forbidden.set()

    @property
    def ended_well(self) -> bool:
        """Whether spark-submit has ended, without an error."""
        return self.error is None and not self.is_alive()

    @property
    def application_on_yarn(self) -> str | None:
        """The id of the application in cluster mode, once spark-submit has said it; the hook keeps it for its own
        ``on_kill``."""
        return getattr(self._hook, "_yarn_application_id", None)

    @property
    def forbidden(self) -> bool:
        """Whether the launch was forbidden."""
        return self._forbidden.is_set()

    def wait(self) -> None:
        """Join in slices, so that a signal's handler can run meanwhile."""
        while self.is_alive():
            self.join(timeout=1.0)

    def run(self) -> None:
        try:
            if self._forbidden.is_set():
                raise EngineError("it was cancelled before it was launched")
            # A task's stdin is its supervisor's socket. An orphaned JVM that inherits the socket holds it open, and the
            # scheduler learns of the task's death a minute late.
            self._hook.submit(self._application, stdin=subprocess.DEVNULL, env=self._environment)
            if self._forbidden.is_set():
                raise EngineError("it was cancelled")
        except Exception as error:
            self.error = error
        finally:
            packaging.unpack(self._tag)
