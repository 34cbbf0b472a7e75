"""Loads classes of Spark that every batch needs while Python imports PySpark: by then spark-submit's Java has started
Python and waits for it, so that a core is free.

The classes are loaded before Spark's context is begun and not beside it: two threads that initialise classes of Scala
may wait for each other for ever. If loading a class fails here, the class is loaded when it is needed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_CLASSES = (
    "org.apache.spark.SparkContext",
    # Builds the registry of all SQL functions, with a class for each.
    "org.apache.spark.sql.catalyst.analysis.FunctionRegistry$",
    "org.apache.spark.sql.internal.BaseSessionStateBuilder",
    "org.apache.spark.sql.execution.SparkOptimizer",
    "org.apache.spark.sql.execution.SparkPlanner",
    "org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter$",
    "org.codehaus.janino.ClassBodyEvaluator",
)


def preload() -> threading.Thread | None:
    """Begin to load; None where no Java waits, as in a process that starts its own.

    :return: the thread, to be joined before Spark's context is begun.
    """
    port, secret = os.environ.get(_PORT), os.environ.get(_SECRET)
    if not port or not secret:
        return None
    thread = threading.Thread(target=_load, args=(int(port), secret), daemon=True, name="preload")
    thread.start()
    return thread


def _load(port: int, secret: str) -> None:
    with contextlib.suppress(Exception):
        from py4j.clientserver import (  # type: ignore[import-untyped]
            ClientServer,
            JavaParameters,
            PythonParameters,
        )

        gateway: Any = ClientServer(
            java_parameters=JavaParameters(port=port, auth_token=secret),
            python_parameters=PythonParameters(port=0, eager_load=False),
        )
        java = gateway.jvm
        # Spark's grammar, with the tables of its parser.
        java.org.apache.spark.sql.types.StructType.fromDDL("id long")
        for name in _CLASSES:
            with contextlib.suppress(Exception):
                java.java.lang.Class.forName(name)
        gateway.close()
