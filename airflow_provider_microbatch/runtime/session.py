"""The session a batch runs in, with the settings that its offset log entry pins."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.preload import preload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

BOOT = "spark.microbatch.boot"
"""The setting by which a server that this package has started names its machine and boot: see :func:`boot_id`."""


def boot_id() -> str:
    """The id of the running kernel: processes with the same id see the same state of a file system. Empty if
    unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def open_session() -> SparkSession:
    """The session that spark-submit has configured."""
    _prefer_installed_pyspark()
    loading = preload()
    from pyspark.sql import SparkSession

    # PySpark imports pandas, if installed, at its first call that passes a list, so import pandas while Java starts the
    # context. Pandas imports nothing of PySpark, so neither thread can wait for ever for the other's imports.
    threading.Thread(target=_import_pandas, daemon=True, name="pandas").start()
    if loading is not None:
        loading.join()
    return SparkSession.builder.getOrCreate()


def _prefer_installed_pyspark() -> None:
    """Import PySpark from the folder in which it is installed, and not from the zip in that folder, which spark-submit
    puts first: Python keeps no bytecode for a zip, so a driver would compile all of PySpark again."""
    home = Path(os.environ.get("SPARK_HOME", ""))
    zipped = str(home / "python" / "lib" / "pyspark.zip")
    is_installed = home.name == "pyspark" and str(home.parent) in sys.path and (home / "sql" / "session.py").is_file()
    if is_installed and zipped in sys.path:
        sys.path.remove(zipped)


def _import_pandas() -> None:
    with contextlib.suppress(Exception):
        importlib.import_module("pandas")


def folder_beside_driver(spark: SparkSession, address: str) -> Path | None:
    """The folder that Spark has just made at ``address``, if this process sees the folder exactly as Spark's driver
    does: this process is on the driver's host, and the folder exists. On another host, a shared file system may show an
    older state.

    :param address: a ``file:`` URL.
    """
    folder = path_beside_driver(spark, address)
    return folder if folder is not None and folder.is_dir() else None


def path_beside_driver(spark: SparkSession, address: str) -> Path | None:
    """The path, which need not exist, if this process is on the host of Spark's driver and so has the same local files.

    :param address: a ``file:`` URL.
    """
    if not address.startswith("file:///") or not _is_beside_driver(spark):
        return None
    return Path(address.removeprefix("file://"))


@lru_cache(maxsize=1)
def _is_beside_driver(spark: Any) -> bool:
    if "connect" not in type(spark).__module__:
        return True  # the driver's JVM is this process's own
    if spark.client.host not in ("localhost", "127.0.0.1", socket.gethostname()):
        return False
    # A forwarded port looks local too, but the kernel's id tells, and so does the driver's own address: only an address
    # of this host can be bound. Any host has a loopback address.
    told = spark.conf.get(BOOT, None)
    if told:
        return bool(told == boot_id())
    address = spark.conf.get("spark.driver.host", None)
    if not address or address == "localhost" or address.startswith("127."):
        return False
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def loses_rows(name: str, value: object) -> str | None:
    """Why an option of a reader, or a SQL setting, would let batches be committed with a part of their rows, and what
    to do instead; None if it would not.

    :param name: name of the option or setting; Spark ignores its case.
    """
    if name.lower().rpartition(".")[2] != "ignorecorruptfiles" or str(value).strip().lower() == "false":
        return None
    return (
        f"{name!r} has Spark leave out, without a word, what it cannot read of a file, and the batch is committed "
        "without these rows. Leave it out: a file that cannot be read fails its batch, and the error names it. Mend "
        "it (on_changed='read' then reads it as it is), or take it away (on_missing='skip' then goes on without it); "
        "Pipeline(on_failure='set_aside') lets later batches go on until then."
    )


def pin(spark: SparkSession, conf: Mapping[str, str]) -> None:
    """Set the batch's SQL settings. A setting that Spark takes at start only stays as it is, with a warning if it
    differs."""
    from pyspark.errors import PySparkException

    set_all = getattr(spark.conf, "_set_all", None)
    if conf and set_all is not None:
        # With Spark Connect: one call to the server for all settings.
        with contextlib.suppress(PySparkException):
            set_all(dict(conf), silent=False)
            return
    for key, value in conf.items():
        try:
            spark.conf.set(key, value)
        except PySparkException as error:
            if spark.conf.get(key, None) == value:
                continue
            # Log neither the value nor Spark's message, which quotes it: settings may hold secrets.
            log.warning(
                "Spark refuses the setting %s (%s). If it may be set at start only, give it to spark-submit, or to the "
                "server, instead",
                key,
                error.getCondition() or type(error).__name__,
            )
