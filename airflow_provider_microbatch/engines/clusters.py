"""Finding and ending the applications of an attempt on YARN and Kubernetes, by tag and label.

The code for either cluster was not tried on a real one: the command lines and calls are those of Hadoop's and
Kubernetes' documentation.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import EngineState

_TIMEOUT = 60
_ALIVE = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
_APPLICATION = re.compile(r"^\s*(application_\d+_\d+)\b", re.MULTILINE)

LABEL = "microbatch-tag"
"""Label of a driver's pod: its value is the attempt's tag."""


def yarn_applications(tag: str) -> list[str]:
    """Ids of the applications with ``tag`` that have not ended.

    :raises EngineError: if YARN cannot be asked from here.
    """
    listed = _yarn("application", "-list", "-appTags", tag, "-appStates", _ALIVE)
    return _APPLICATION.findall(listed)


def yarn_kill(tag: str) -> bool:
    """Kill the applications with ``tag``; True if there were any."""
    found = yarn_applications(tag)
    for application in found:
        _yarn("application", "-kill", application)
    return bool(found)


def _yarn(*arguments: str) -> str:
    binary = shutil.which("yarn")
    if binary is None:
        raise EngineError("the command 'yarn' is not on PATH, so YARN cannot be asked. Install Hadoop's client.")
    try:
        done = subprocess.run(
            [binary, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"yarn {' '.join(arguments)}: {error}") from error
    if done.returncode != 0:
        raise EngineError(f"yarn {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def kubernetes_state(tag: str, namespace: str | None) -> EngineState:
    """State of the driver pod with this tag.

    :raises EngineError: if the cluster cannot be asked from here.
    """
    phases = [pod.status.phase for pod in _driver_pods(tag, namespace)]
    if not phases:
        return EngineState.UNKNOWN
    if any(phase in ("Pending", "Running") for phase in phases):
        return EngineState.RUNNING
    return EngineState.SUCCEEDED if phases == ["Succeeded"] else EngineState.FAILED


def kubernetes_kill(tag: str, namespace: str | None) -> bool:
    """Delete the driver pods with this tag (their executors go with them); True if one was alive."""
    pods = _driver_pods(tag, namespace)
    for pod in pods:
        _core_api().delete_namespaced_pod(pod.metadata.name, pod.metadata.namespace)
    return any(pod.status.phase in ("Pending", "Running") for pod in pods)


def _driver_pods(tag: str, namespace: str | None) -> list[Any]:
    try:
        listed = _core_api().list_namespaced_pod(namespace or "default", label_selector=f"{LABEL}={tag}")
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"Kubernetes cannot be asked for the driver of {tag}: {error}") from error
    return list(listed.items)


def _core_api() -> Any:
    try:
        from kubernetes import client, config  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise EngineError(
            "the package 'kubernetes' is not installed, so the driver's pod cannot be found. Install it: pip install "
            "'apache-airflow-providers-cncf-kubernetes'"
        ) from error
    try:
        config.load_incluster_config()
    except config.ConfigException:
        config.load_kube_config()
    return client.CoreV1Api()
