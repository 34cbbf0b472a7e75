"""Finding and ending the driver's pod of an attempt on Kubernetes, by label.

Not tried on a real cluster: Kubernetes' own client is spoken to by a server of the tests, in the shapes of its API.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_microbatch.engines.masters import Target
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import EngineState

LABEL = "microbatch-tag"
"""Label of a driver's pod: its value is the attempt's tag."""

NAMESPACE = "spark.kubernetes.namespace"
"""Setting of Spark's that says where the driver's pod is made."""

DEFAULT_NAMESPACE = "default"
"""The namespace that Spark takes where none is named."""

_OWN_CLUSTER = ("kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "kubernetes.default", "kubernetes")
"""Names by which a pod reaches the cluster that it runs in."""

_CALL_SECONDS = (5.0, 30.0)
"""How long a connection and an answer may take."""

_END_SECONDS = 60.0
"""How long a deleted pod may take to end; Kubernetes gives the driver 30 by default before it is killed."""

_PAUSE_SECONDS = 0.5

_MAY_LIVE = ("Pending", "Running", "Unknown")
"""Phases of a pod that may have a driver: ``Unknown`` is that of one whose node does not answer."""

_GONE = 404

_GET = "Install it: pip install 'apache-airflow-providers-cncf-kubernetes'"


def check_client() -> None:
    """Check that a driver's pod can be looked for, and that Airflow's hook can submit to Kubernetes at all.

    :raises EngineError: if a package is missing.
    """
    try:
        found = importlib.util.find_spec("airflow.providers.cncf.kubernetes")
    except ModuleNotFoundError:
        found = None
    if found is None or importlib.util.find_spec("kubernetes") is None:
        raise EngineError(f"Airflow's provider for Kubernetes is not installed: nothing can be submitted there. {_GET}")


def driver_state(tag: str, target: Target) -> EngineState:
    """State of the driver pod with this tag.

    :param target: the cluster, and the namespace in it.
    :raises EngineError: if the cluster cannot be asked from here.
    """
    with _asking(tag, target) as api:
        phases = [pod.status.phase for pod in _driver_pods(api, tag, target)]
    if not phases:
        return EngineState.UNKNOWN
    if any(phase in _MAY_LIVE for phase in phases):
        return EngineState.RUNNING
    return EngineState.SUCCEEDED if phases == ["Succeeded"] else EngineState.FAILED


def end_driver(tag: str, target: Target, *, seconds: float = _END_SECONDS) -> bool:
    """Delete the driver pods with this tag that may be alive (their executors go with them), and wait until none is. A
    pod that has ended stays: its log is the only one of its driver.

    :param target: the cluster, and the namespace in it.
    :param seconds: how long to wait.
    :return: whether one was alive.
    :raises EngineError: if the cluster cannot be asked from here, refuses, or a pod does not end in time.
    """
    with _asking(tag, target) as api:
        alive = was_alive = list(filter(_may_live, _driver_pods(api, tag, target)))
        for pod in alive:
            _delete(api, pod)
        deadline = time.monotonic() + seconds
        while alive:
            if time.monotonic() > deadline:
                names = ", ".join(f"{pod.metadata.name} on node {pod.spec.node_name}" for pod in alive)
                raise EngineError(
                    f"the driver of {tag} was told to end, and has not after {seconds:.0f} seconds: pod {names}. Look "
                    "at its node; if that is gone for good: `kubectl delete pod --force` removes the pod."
                )
            time.sleep(_PAUSE_SECONDS)
            alive = list(filter(_may_live, _driver_pods(api, tag, target)))
    return bool(was_alive)


def _may_live(pod: Any) -> bool:
    return pod.status.phase in _MAY_LIVE


def _driver_pods(api: Any, tag: str, target: Target) -> list[Any]:
    listed = api.list_namespaced_pod(
        target.namespace or DEFAULT_NAMESPACE, label_selector=f"{LABEL}={tag}", _request_timeout=_CALL_SECONDS
    )
    return list(listed.items)


def _delete(api: Any, pod: Any) -> None:
    try:
        api.delete_namespaced_pod(pod.metadata.name, pod.metadata.namespace, _request_timeout=_CALL_SECONDS)
    except Exception as error:
        if getattr(error, "status", None) != _GONE:
            raise


@contextmanager
def _asking(tag: str, target: Target) -> Iterator[Any]:
    """The client's API, for all that is asked of one driver."""
    try:
        yield _core_api(target.master)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"Kubernetes cannot be asked for the driver of {tag}: {error}") from error


def _core_api(master: str) -> Any:
    """The client of the cluster that the master names, with the credentials that are known here for that one. A master
    comes out of a checkpoint: no token is ever sent to an address that only the master has. Where neither the pod that
    this process runs in nor a kube-config knows it by that address, the cluster whose credentials Spark takes is asked:
    Spark itself reaches the master by them.

    :raises EngineError: if Kubernetes' client is not installed.
    """
    try:
        from kubernetes import client
        from kubernetes.config import ConfigException, kube_config, load_incluster_config, load_kube_config
    except ImportError as error:
        raise EngineError(
            f"the package 'kubernetes' is not installed, so the driver's pod cannot be found. {_GET}"
        ) from error
    made = client.Configuration()
    server = _server(master.removeprefix("k8s://"))
    files = kube_config.KubeConfigMerger(kube_config.KUBE_CONFIG_DEFAULT_LOCATION)  # type: ignore[no-untyped-call]
    known = _contexts(files.config_files.values())
    context = next((name for name, of in known.items() if of == server), None)
    if context is None and (not known or server in _own_servers()):
        try:
            load_incluster_config(client_configuration=made)  # type: ignore[no-untyped-call]
            return client.CoreV1Api(client.ApiClient(made))
        except ConfigException:
            pass  # this process runs in no pod
    load_kube_config(context=context, client_configuration=made)  # type: ignore[no-untyped-call]
    return client.CoreV1Api(client.ApiClient(made))


def _contexts(configs: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, str, int]]:
    """By the name of a context of the kube-config, its server; the current context comes first.

    :param configs: the files that it is made of; the first one that has a name counts.
    """
    servers: dict[str, tuple[str, str, int]] = {}
    contexts: dict[str, str] = {}
    current: str | None = None
    for values in configs:
        current = current or values.get("current-context")
        for one in values.get("clusters") or ():
            servers.setdefault(one["name"], _server(str(one["cluster"].get("server"))))
        for one in values.get("contexts") or ():
            contexts.setdefault(one["name"], one["context"].get("cluster"))
    names = sorted(contexts, key=lambda name: name != current)
    return {name: servers[contexts[name]] for name in names if contexts[name] in servers}


def _own_servers() -> set[tuple[str, str, int]]:
    """The addresses of the cluster that this process runs in; empty where it runs in none."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return set()
    return {_server(f"https://{name}:{number}") for name in (host, *_OWN_CLUSTER) for number in (port, "443")}


def _server(address: str) -> tuple[str, str, int]:
    """Scheme, host and port of an API server: Spark takes https where the master names no scheme."""
    url = urlsplit(address if "://" in address else f"https://{address}")
    return url.scheme, url.hostname or "", url.port or (80 if url.scheme == "http" else 443)
