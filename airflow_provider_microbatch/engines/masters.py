"""Determines the Spark master that a connection names, and what Spark refuses there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.exceptions import EngineError

_TYPES = ("spark", "yarn", "k8s", "local")
"""Types of connections: Airflow's ``spark``, and the types that Airflow derives from a connection given as a URI, such
as ``k8s://https://host``."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The cluster to which a job is submitted.

    :param master: Spark's master URL.
    :param deploy_mode: ``client`` or ``cluster``.
    :param namespace: Kubernetes namespace, None elsewhere.
    """

    master: str
    deploy_mode: str
    namespace: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether driver and executors are one process on this host."""
        return self.master.startswith("local")

    @property
    def is_yarn(self) -> bool:
        """Whether the master is Hadoop YARN."""
        return self.master.startswith("yarn")

    @property
    def is_kubernetes(self) -> bool:
        """Whether the master is Kubernetes."""
        return self.master.startswith("k8s")

    def check(self) -> None:
        """:raises EngineError: if Spark would refuse a Python application on this target."""
        if self.deploy_mode not in ("client", "cluster"):
            raise EngineError(f"deploy mode {self.deploy_mode!r} is neither 'client' nor 'cluster'.")
        if self.is_yarn and self.master != "yarn":
            raise EngineError(
                f"master {self.master}: Spark knows YARN by the one word 'yarn'; where it is, HADOOP_CONF_DIR says. "
                "Give the connection the type 'spark' and the host 'yarn', without a port."
            )
        if self.deploy_mode == "client":
            return
        if self.master.startswith("spark://"):
            raise EngineError(
                f"master {self.master} with deploy mode 'cluster': Spark runs no Python application in cluster mode "
                "on a standalone cluster. Set deploy-mode to 'client' in the connection's extra."
            )
        if self.is_local:
            raise EngineError(
                f"master {self.master} with deploy mode 'cluster': there is no cluster. Set deploy-mode to 'client' in "
                "the connection's extra."
            )


def target_of(connection: Any, *, deploy_mode: str | None = None) -> Target:
    """The target that the Spark provider's hook derives from a connection, by the hook's own rules.

    :param connection: an Airflow connection of type ``spark``.
    :param deploy_mode: overrides the connection's ``deploy-mode`` extra.
    :raises EngineError: if the connection is of another type.
    """
    if connection.conn_type not in _TYPES:
        raise EngineError(
            f"the connection {connection.conn_id!r} is of type {connection.conn_type!r}, not 'spark' (spark-submit) or "
            "'spark_connect' (a server that runs already). Name another connection as conn_id, or give this one a type "
            "of these."
        )
    if connection.conn_type == "spark" and connection.host and ("://" in connection.host or not connection.port):
        master = str(connection.host)
    else:
        master = f"{connection.conn_type}://{connection.host or ''}"
    if connection.port:
        master = f"{master}:{connection.port}"
    extra = connection.extra_dejson
    return Target(
        master=master,
        deploy_mode=deploy_mode or extra.get("deploy-mode") or "client",
        namespace=extra.get("namespace"),
    )
