"""A real YARN on loopback: Hadoop's own ResourceManager and one NodeManager."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyspark

from airflow_provider_microbatch.engines import processes
from tests.environments import QUICK_JAVA, jars
from tests.support.connect_server import free_port, served
from tests.support.waiting import wait_until

_CLUSTER = Path(__file__).parent / "java" / "YarnCluster.java"
_JARS = Path(pyspark.__path__[0]) / "jars"
_OF_SPARK = ("hadoop-client-*.jar", "slf4j-api-*.jar", "jcl-over-slf4j-*.jar", "log4j-*.jar", "javax.servlet-api-*.jar")
_OPEN = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")  # for the classes that Guice makes of the web pages
_FIFO = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"

_STATE = re.compile(r"RMAppImpl - (application_\d+_\d+) State change from \w+ to (\w+)")

_QUICK = QUICK_JAVA["SPARK_SUBMIT_OPTS"]
_SPARK = {
    # They lie on each node, so none is uploaded.
    "spark.yarn.jars": f"local:{_JARS}/*",
    "spark.pyspark.python": sys.executable,
    "spark.driver.host": "127.0.0.1",
    "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    # Who computes nothing starts no executor.
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "1",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "128m",
    "spark.driver.memory": "512m",
    "spark.driver.memoryOverhead": "128m",
    "spark.yarn.am.memory": "256m",
    "spark.yarn.am.memoryOverhead": "128m",
    "spark.yarn.am.extraJavaOptions": _QUICK,
    "spark.driver.extraJavaOptions": _QUICK,
    "spark.executor.extraJavaOptions": _QUICK,
    "spark.ui.enabled": "false",
}


@dataclass(frozen=True, kw_only=True)
class Yarn:
    """A YARN that runs.

    :param configuration: the folder that ``HADOOP_CONF_DIR`` names.
    :param spark: settings of a small application.
    :param log: of the cluster's process.
    """

    configuration: Path
    spark: Mapping[str, str]
    log: Path

    def states(self) -> dict[str, str]:
        """The state of each application by its id, in the order of their submission."""
        return dict(_STATE.findall(self.log.read_text(errors="replace")))


@contextmanager
def yarn_cluster(folder: Path) -> Iterator[Yarn]:
    """One with 4 GB for containers, while the context is open.

    :param folder: for its configuration, logs and the containers' files.
    """
    ports = [free_port() for _ in range(5)]
    at = dict(zip(("address", "scheduler", "resource-tracker", "admin", "webapp"), ports, strict=True))
    configuration = folder / "conf"
    configuration.mkdir(parents=True)
    settings = {
        "yarn.resourcemanager.address": f"127.0.0.1:{at.pop('address')}",
        **{f"yarn.resourcemanager.{name}.address": f"127.0.0.1:{port}" for name, port in at.items()},
        "yarn.resourcemanager.scheduler.class": _FIFO,
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": 100,
        "yarn.scheduler.minimum-allocation-mb": 128,
        "yarn.nodemanager.hostname": "127.0.0.1",
        "yarn.nodemanager.address": "127.0.0.1:0",
        "yarn.nodemanager.localizer.address": "127.0.0.1:0",
        "yarn.nodemanager.collector-service.address": "127.0.0.1:0",
        "yarn.nodemanager.webapp.address": "127.0.0.1:0",
        "yarn.nodemanager.local-dirs": folder / "local",
        "yarn.nodemanager.log-dirs": folder / "logs",
        "yarn.nodemanager.resource.memory-mb": 4096,
        "yarn.nodemanager.resource.cpu-vcores": 4,
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.pmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.enable": "false",
    }
    _write(configuration / "yarn-site.xml", settings)
    _write(configuration / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": folder / "tmp"})
    classes = [configuration, *jars("yarn"), *(jar for pattern in _OF_SPARK for jar in sorted(_JARS.glob(pattern)))]
    command = ["java", "-Xmx256m", "-Dlog4j2.level=INFO", f"-Djava.io.tmpdir={folder}", *_QUICK.split(), *_OPEN]
    command += ["-cp", ":".join(map(str, classes)), str(_CLUSTER)]
    log = folder / "cluster.log"
    try:
        with served(command, at["webapp"], log):
            wait_until(lambda: "Registered with ResourceManager" in log.read_text(errors="replace"))
            spark = {**_SPARK, "spark.yarn.stagingDir": f"file://{folder}/staging"}
            yield Yarn(configuration=configuration, spark=spark, log=log)
    finally:
        # Containers are in sessions of their own, and have its folders in their command lines.
        processes.end(processes.carrying(str(folder)), grace=1)


def _write(path: Path, settings: Mapping[str, Any]) -> None:
    told = (
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>"
        for name, value in settings.items()
    )
    path.write_text(f"<configuration>{''.join(told)}</configuration>\n")
