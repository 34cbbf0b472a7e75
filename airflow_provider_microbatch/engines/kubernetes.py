"""Finding and ending the driver's pod of an attempt on Kubernetes, by label.

Not tried on a real cluster: Kubernetes' own client is spoken to by a server of the tests, in the shapes of its API.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import EngineState

LABEL = "microbatch-tag"
"""Label of a driver's pod: its value is the attempt's tag."""

_CALL_SECONDS = (5.0, 30.0)
"""How long a connection and an answer may take."""

_END_SECONDS = 60.0
"""How long a deleted pod may take to end; Kubernetes gives the driver 30 by default before it is killed."""

_PAUSE_SECONDS = 0.5

_MAY_LIVE = ("Pending", "Running", "Unknown")
"""Phases of a pod that may have a driver: ``Unknown`` is that of one whose node does not answer."""

_GONE = 404


def driver_state(tag: str, namespace: str | None) -> EngineState:
    """State of the driver pod with this tag.

    :raises EngineError: if the cluster cannot be asked from here.
    """
    with _asking(tag) as api:
        phases = [pod.status.phase for pod in _driver_pods(api, tag, namespace)]
    if not phases:
        return EngineState.UNKNOWN
    if any(phase in _MAY_LIVE for phase in phases):
        return EngineState.RUNNING
    return EngineState.SUCCEEDED if phases == ["Succeeded"] else EngineState.FAILED


def end_driver(tag: str, namespace: str | None, *, seconds: float = _END_SECONDS) -> bool:
    """Delete the driver pods with this tag (their executors go with them), and wait until none is alive.

    :param seconds: how long to wait.
    :return: whether one was alive.
    :raises EngineError: if the cluster cannot be asked from here, refuses, or a pod does not end in time.
    """
    with _asking(tag) as api:
        found = _driver_pods(api, tag, namespace)
        for pod in found:
            _delete(api, pod)
        alive = was_alive = list(filter(_may_live, found))
        deadline = time.monotonic() + seconds
        while alive:
            if time.monotonic() > deadline:
                names = ", ".join(f"{pod.metadata.name} on node {pod.spec.node_name}" for pod in alive)
                raise EngineError(
                    f"the driver of {tag} was told to end, and has not after {seconds:.0f} seconds: pod {names}. Look "
                    "at its node; if that is gone for good: `kubectl delete pod --force` removes the pod."
                )
            time.sleep(_PAUSE_SECONDS)
            alive = list(filter(_may_live, _driver_pods(api, tag, namespace)))
    return bool(was_alive)


def _may_live(pod: Any) -> bool:
    return pod.status.phase in _MAY_LIVE


def _driver_pods(api: Any, tag: str, namespace: str | None) -> list[Any]:
    listed = api.list_namespaced_pod(
        namespace or "default", label_selector=f"{LABEL}={tag}", _request_timeout=_CALL_SECONDS
    )
    return list(listed.items)


def _delete(api: Any, pod: Any) -> None:
    try:
        api.delete_namespaced_pod(pod.metadata.name, pod.metadata.namespace, _request_timeout=_CALL_SECONDS)
    except Exception as error:
        if getattr(error, "status", None) != _GONE:
            raise


@contextmanager
def _asking(tag: str) -> Iterator[Any]:
    """The client's API, for all that is asked of one driver."""
    try:
        yield _core_api()
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"Kubernetes cannot be asked for the driver of {tag}: {error}") from error


def _core_api() -> Any:
    try:
        from kubernetes import client
        from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
    except ImportError as error:
        raise EngineError(
            "the package 'kubernetes' is not installed, so the driver's pod cannot be found. Install it: pip install "
            "'apache-airflow-providers-cncf-kubernetes'"
        ) from error
    try:
        load_incluster_config()  # type: ignore[no-untyped-call]
    except ConfigException:
        load_kube_config()  # type: ignore[no-untyped-call]
    return client.CoreV1Api()
