"""The driver's pod on Kubernetes is found and ended by Kubernetes' own client, to which a server plays its API."""

from __future__ import annotations

import importlib.util
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from kubernetes.config.incluster_config import InClusterConfigLoader

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.engines import packaging
from airflow_provider_microbatch.engines.kubernetes import driver_state, end_driver
from airflow_provider_microbatch.engines.masters import Target
from airflow_provider_microbatch.engines.packaging import property_of
from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import Code, EngineState
from airflow_provider_microbatch.runtime.job import Job
from tests.support.connect_server import free_port

TAG = "microbatch-0f3c"
LAKE = Target(master="k8s://https://lake", deploy_mode="cluster", namespace="lake")


def pod(phase: str, *, name: str = "orders-driver") -> dict[str, Any]:
    """As the API tells a driver's pod that Spark has made."""
    labels = {"spark-role": "driver", "spark-app-selector": "spark-4f2a", "microbatch-tag": TAG}
    container = {"name": "spark-kubernetes-driver", "image": "spark:4.1.3", "args": ["driver"], "resources": {}}
    ended = {"Succeeded": 0, "Failed": 137}
    state = (
        {"terminated": {"exitCode": ended[phase], "reason": "Completed", "containerID": "containerd://4f"}}
        if phase in ended
        else {"running": {"startedAt": "2026-01-01T00:00:05Z"}}
    )
    status = {"name": container["name"], "ready": False, "restartCount": 0, "image": "", "imageID": "", "state": state}
    return {
        "metadata": {"name": name, "namespace": "lake", "uid": "c1d9", "labels": labels, "resourceVersion": "811"},
        "spec": {"containers": [container], "nodeName": "node-7", "restartPolicy": "Never"},
        "status": {"phase": phase, "qosClass": "Burstable", "containerStatuses": [status]},
    }


class Cluster:
    """Its API. A deleted pod is seen once more before it has ended."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        self.ends = True
        """Whether deleted pods end at all."""
        self.refuses = 0
        """Status of all answers to a look, if it is not 0."""
        self.asked: list[str] = []
        self.tokens: list[str] = []
        self._leaving: set[str] = set()
        cluster = self

        class Api(BaseHTTPRequestHandler):
            def log_message(self, *given: object) -> None:
                pass

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                cluster.asked.append(f"GET {url.path} {parse_qs(url.query).get('labelSelector')}")
                cluster.tokens.append(self.headers.get("authorization", ""))
                self._answer(
                    cluster.refuses or 200,
                    {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": cluster.pods},
                )
                if cluster.ends:
                    cluster.pods = [one for one in cluster.pods if one["metadata"]["name"] not in cluster._leaving]

            def do_DELETE(self) -> None:
                name = urlsplit(self.path).path.rpartition("/")[2]
                cluster.asked.append(f"DELETE {self.path}")
                found = next((one for one in cluster.pods if one["metadata"]["name"] == name), None)
                if found is None:
                    told = {
                        "kind": "Status",
                        "apiVersion": "v1",
                        "status": "Failure",
                        "reason": "NotFound",
                        "code": 404,
                    }
                    self._answer(404, told)
                else:
                    cluster._leaving.add(name)
                    self._answer(200, found)

            def _answer(self, status: int, told: dict[str, Any]) -> None:
                data = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
        self.server.daemon_threads = True
        self.port: int = self.server.server_address[1]


@contextmanager
def serving() -> Iterator[Cluster]:
    found = Cluster()
    threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with serving() as found:
        configured(tmp_path, monkeypatch, lake=found.port)
        monkeypatch.setattr("airflow_provider_microbatch.engines.kubernetes._PAUSE_SECONDS", 0.01)
        yield found


def configured(folder: Path, monkeypatch: pytest.MonkeyPatch, **ports: int) -> None:
    """A kube-config with a cluster for each name; the first is the current one."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": next(iter(ports)),
        "clusters": [{"name": name, "cluster": {"server": f"http://127.0.0.1:{port}"}} for name, port in ports.items()],
        "users": [{"name": name, "user": {"token": f"token-of-{name}"}} for name in ports],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}} for name in ports],
    }
    (folder / "config").write_text(json.dumps(config))
    # The client has looked for it when it was imported.
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(folder / "config"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.mark.parametrize(
    ("phases", "state"),
    [
        ([], EngineState.UNKNOWN),
        (["Pending"], EngineState.RUNNING),
        (["Running"], EngineState.RUNNING),
        (["Unknown"], EngineState.RUNNING),
        (["Failed", "Running"], EngineState.RUNNING),
        (["Succeeded"], EngineState.SUCCEEDED),
        (["Failed"], EngineState.FAILED),
        (["Failed", "Succeeded"], EngineState.FAILED),
    ],
)
def test_the_pods_tell_the_state_of_the_driver(cluster: Cluster, phases: list[str], state: EngineState) -> None:
    cluster.pods = [pod(phase, name=f"driver-{number}") for number, phase in enumerate(phases)]
    assert driver_state(TAG, LAKE) is state
    assert cluster.asked == [f"GET /api/v1/namespaces/lake/pods ['microbatch-tag={TAG}']"]


def test_a_driver_is_ended_when_its_pod_has_ended_and_not_before(cluster: Cluster) -> None:
    cluster.pods = [pod("Running")]
    assert end_driver(TAG, LAKE)
    assert cluster.pods == []
    assert [asked.partition(" ")[0] for asked in cluster.asked] == ["GET", "DELETE", "GET", "GET"]
    assert not end_driver(TAG, LAKE)


def test_pods_that_have_ended_stay_with_their_log(cluster: Cluster) -> None:
    """An attempt that has failed is cancelled too, and nothing else has what its driver has written."""
    cluster.pods = [pod("Failed"), pod("Succeeded", name="another"), pod("Running", name="third")]
    assert end_driver(TAG, LAKE)
    assert [one["metadata"]["name"] for one in cluster.pods] == ["orders-driver", "another"]
    assert not end_driver(TAG, LAKE)
    assert [asked for asked in cluster.asked if asked.startswith("DELETE")] == [
        "DELETE /api/v1/namespaces/lake/pods/third"
    ]


def test_one_that_goes_meanwhile_is_gone(cluster: Cluster) -> None:
    cluster.pods = [pod("Running")]
    cluster._leaving = {"orders-driver"}
    assert end_driver(TAG, LAKE)
    assert cluster.pods == []


def test_one_whose_node_does_not_answer_is_not_taken_for_ended(cluster: Cluster) -> None:
    cluster.pods, cluster.ends = [pod("Unknown")], False
    with pytest.raises(EngineError, match=r"has not after 0 seconds: pod orders-driver on node node-7.*--force"):
        end_driver(TAG, LAKE, seconds=0.1)


@pytest.mark.parametrize("ask", [driver_state, end_driver])
def test_a_cluster_that_refuses_or_is_not_there_is_said_so(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Any
) -> None:
    cluster.refuses = 403
    with pytest.raises(EngineError, match=rf"cannot be asked for the driver of {TAG}: \(403\)"):
        ask(TAG, replace(LAKE, namespace=None))
    assert "/namespaces/default/" in cluster.asked[0]
    configured(tmp_path, monkeypatch, lake=free_port())
    with pytest.raises(EngineError, match=f"cannot be asked for the driver of {TAG}"):
        ask(TAG, replace(LAKE, namespace=None))
    (tmp_path / "config").unlink()
    with pytest.raises(EngineError, match=r"cannot be asked .*[Ii]nvalid kube-config"):
        ask(TAG, replace(LAKE, namespace=None))


def in_a_pod(folder: Path, monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    """This process runs in a pod of the cluster, whose name and credentials Kubernetes has put there."""
    loader = "kubernetes.config.incluster_config."
    for name, text in (("TOKEN", "token-of-own"), ("CERT", "-")):
        (folder / name).write_text(text)
        monkeypatch.setattr(f"{loader}SERVICE_{name}_FILENAME", str(folder / name))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(cluster.port))
    own: Callable[[InClusterConfigLoader], None] = InClusterConfigLoader._load_config

    def plain(self: InClusterConfigLoader) -> None:
        own(self)
        self.host = self.host.replace("https://", "http://")

    monkeypatch.setattr(InClusterConfigLoader, "_load_config", plain)


@pytest.mark.parametrize(
    ("master", "asked"),
    [
        ("k8s://http://127.0.0.1:{other}", "other"),
        ("k8s://http://127.0.0.1:{lake}/", "lake"),
        ("k8s://https://kubernetes.default.svc", "own"),
        ("k8s://kubernetes.default.svc:443", "own"),
        ("k8s://https://by-another-name", "lake"),
    ],
)
def test_the_cluster_of_the_master_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, asked: str
) -> None:
    """Airflow may run in a pod of one, and submit to another. Else: as Spark takes its credentials."""
    with serving() as lake, serving() as other, serving() as own:
        configured(tmp_path, monkeypatch, lake=lake.port, other=other.port)
        in_a_pod(tmp_path, monkeypatch, own)
        driver_state(TAG, replace(LAKE, master=master.format(lake=lake.port, other=other.port)))
        tokens = {"lake": lake.tokens, "other": other.tokens, "own": own.tokens}
    assert {name: [one.lower() for one in found] for name, found in tokens.items()} == {
        name: [f"bearer token-of-{name}"] if name == asked else [] for name in tokens
    }


def test_a_pod_without_a_kube_config_asks_its_own_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as own:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
        in_a_pod(tmp_path, monkeypatch, own)
        driver_state(TAG, replace(LAKE, master="k8s://https://evil.example"))
    assert len(own.asked) == 1


def test_no_token_is_sent_to_where_only_the_checkpoint_says(cluster: Cluster) -> None:
    """Whoever can write a handle could gather tokens."""
    with serving() as stranger:
        driver_state(TAG, replace(LAKE, master=f"k8s://http://127.0.0.1:{stranger.port}"))
    assert stranger.asked == []
    assert len(cluster.asked) == 1


@pytest.mark.parametrize(
    ("extra", "conf", "file", "namespace"),
    [
        ({"namespace": "of-connection"}, {"spark.kubernetes.namespace": "of-conf"}, "of-file", "of-conf"),
        ({"namespace": "of-connection"}, {}, "of-file", "of-connection"),
        ({}, {}, "of-file", "of-file"),
        ({}, {}, None, "default"),
    ],
)
def test_the_driver_is_looked_for_where_spark_makes_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    extra: dict[str, str],
    conf: dict[str, str],
    file: str | None,
    namespace: str,
) -> None:
    connection = {"conn_type": "spark", "host": "k8s://https://h", "extra": {"deploy-mode": "cluster", **extra}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    if file is not None:
        (tmp_path / "spark-defaults.conf").write_text(f"spark.kubernetes.namespace {file}\n")
    # Airflow's provider for Kubernetes is not installed here; building the command asks nothing of it.
    monkeypatch.setattr("airflow_provider_microbatch.engines.kubernetes.check_client", lambda: None)
    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.kube_client", object(), raising=False)
    commands: list[list[str]] = []

    def submit(hook: SparkSubmitHook, application: str, **_: Any) -> None:
        commands.append(hook._build_spark_submit_command(application))

    monkeypatch.setattr(SparkSubmitHook, "submit", submit)
    monkeypatch.setattr(packaging, "unpack", lambda tag: None)
    engine = SparkSubmitEngine(conf=conf)
    handle = engine.handle(pipeline="orders", key=BatchKey("live", 0), epoch=1)
    job = Job(
        pipeline="orders", lane="live", batch_id=0, epoch=1, batch_timestamp_ms=0, watermark_ms=0, sources={}, stages={}
    )
    engine.start(handle, job, Code())
    engine.result(handle)

    assert handle["namespace"] == namespace
    (command,) = commands
    assert {part for part in command if "kubernetes.namespace" in part} == {f"spark.kubernetes.namespace={namespace}"}
    properties = Path(command[command.index("--properties-file") + 1])
    assert property_of(properties, "spark.kubernetes.submission.waitAppCompletion") == "true"
    shutil.rmtree(properties.parent)


def test_without_airflows_provider_nothing_is_submitted_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "k8s://https://h"}))
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: None if "cncf" in name else found(name, *of))
    with pytest.raises(EngineError, match=r"provider for Kubernetes is not installed.*apache-airflow-providers-cncf"):
        SparkSubmitEngine().handle(pipeline="orders", key=BatchKey("live", 0), epoch=1)
