"""Finding and ending the driver's pod of an attempt on Kubernetes, by label.

Not tried on a real cluster: the calls are those of the documentation of Kubernetes' client.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import EngineState

LABEL = "microbatch-tag"
"""Label of a driver's pod: its value is the attempt's tag."""


def driver_state(tag: str, namespace: str | None) -> EngineState:
    """State of the driver pod with this tag.

    :raises EngineError: if the cluster cannot be asked from here.
    """
    phases = [pod.status.phase for pod in _driver_pods(tag, namespace)]
    if not phases:
        return EngineState.UNKNOWN
    if any(phase in ("Pending", "Running") for phase in phases):
        return EngineState.RUNNING
    return EngineState.SUCCEEDED if phases == ["Succeeded"] else EngineState.FAILED


def delete_driver(tag: str, namespace: str | None) -> bool:
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
