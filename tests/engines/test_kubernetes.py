"""The driver's pod on Kubernetes is found and ended by Kubernetes' own client, to which a server plays its API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_provider_microbatch.engines.kubernetes import driver_state, end_driver
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import EngineState
from tests.support.connect_server import free_port

TAG = "microbatch-0f3c"


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
        self._leaving: set[str] = set()
        cluster = self

        class Api(BaseHTTPRequestHandler):
            def log_message(self, *given: object) -> None:
                pass

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                cluster.asked.append(f"GET {url.path} {parse_qs(url.query).get('labelSelector')}")
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


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    found = Cluster()
    threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    configured(tmp_path, monkeypatch, port=found.server.server_address[1])
    monkeypatch.setattr("airflow_provider_microbatch.engines.kubernetes._PAUSE_SECONDS", 0.01)
    yield found
    found.server.shutdown()
    found.server.server_close()


def configured(folder: Path, monkeypatch: pytest.MonkeyPatch, *, port: int) -> None:
    named = {"name": "lake"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lake",
        "clusters": [{**named, "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{**named, "user": {"token": "a-token"}}],
        "contexts": [{**named, "context": {"cluster": "lake", "user": "lake"}}],
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
    assert driver_state(TAG, "lake") is state
    assert cluster.asked == [f"GET /api/v1/namespaces/lake/pods ['microbatch-tag={TAG}']"]


def test_a_driver_is_ended_when_its_pod_has_ended_and_not_before(cluster: Cluster) -> None:
    cluster.pods = [pod("Running")]
    assert end_driver(TAG, "lake")
    assert cluster.pods == []
    assert [asked.partition(" ")[0] for asked in cluster.asked] == ["GET", "DELETE", "GET", "GET"]
    assert not end_driver(TAG, "lake")


def test_pods_that_have_ended_are_tidied_up_and_were_none_that_was_stopped(cluster: Cluster) -> None:
    cluster.pods = [pod("Failed"), pod("Succeeded", name="another")]
    assert not end_driver(TAG, "lake")
    assert sum(asked.startswith("DELETE") for asked in cluster.asked) == 2


def test_one_that_goes_meanwhile_is_gone(cluster: Cluster) -> None:
    cluster.pods = [pod("Running")]
    cluster._leaving = {"orders-driver"}
    assert end_driver(TAG, "lake")
    assert cluster.pods == []


def test_one_whose_node_does_not_answer_is_not_taken_for_ended(cluster: Cluster) -> None:
    cluster.pods, cluster.ends = [pod("Unknown")], False
    with pytest.raises(EngineError, match=r"has not after 0 seconds: pod orders-driver on node node-7.*--force"):
        end_driver(TAG, "lake", seconds=0.1)


@pytest.mark.parametrize("ask", [driver_state, end_driver])
def test_a_cluster_that_refuses_or_is_not_there_is_said_so(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Any
) -> None:
    cluster.refuses = 403
    with pytest.raises(EngineError, match=rf"cannot be asked for the driver of {TAG}: \(403\)"):
        ask(TAG, None)
    assert "/namespaces/default/" in cluster.asked[0]
    configured(tmp_path, monkeypatch, port=free_port())
    with pytest.raises(EngineError, match=f"cannot be asked for the driver of {TAG}"):
        ask(TAG, None)
    (tmp_path / "config").unlink()
    with pytest.raises(EngineError, match=r"cannot be asked .*[Ii]nvalid kube-config"):
        ask(TAG, None)
