"""A class archive: a file from which spark-submit's Java maps Spark's classes instead of reading, checking and linking
them one by one, which is two fifths of the time that the driver of a small batch takes.

The format is Java's own, a dynamic archive of class data sharing (JEP 350, Java 13 and newer). Java uses an archive
only if the archive fits: the same Java, and the same jars at the same places first on the class path. Otherwise Java
prints a line that says so, and starts without the archive.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.engines import packaging, processes
from airflow_provider_microbatch.engines.environment import (
    SPARK_SUBMIT,
    check_versions,
    configuration_folder,
    launch_environment,
    spark_defaults,
)
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.runtime.job import Job, Read, Transform
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file.lock import locked
from airflow_provider_microbatch.sinks.file.posix import sync

log = logging.getLogger(__name__)

EXTRA = "class-archive"
"""Key in the extra of a connection: the folder of the archive."""

FACTS = "archive.json"

_OPTIONS = "SPARK_SUBMIT_OPTS"  # Spark's launcher gives these to the Java of spark-submit, the driver in client mode.
_CONF = "conf"
_CARRIED = {"spark-defaults.conf"}
_QUIET = ("-Xlog:cds=error", "-Xlog:cds+dynamic=error")  # else Java logs each of hundreds of classes it cannot keep
_TIMEOUT = 900.0
_ROWS = 2_000
_TAIL = 20


@dataclass(frozen=True, kw_only=True)
class ClassArchive:
    """The content of ``archive.json``.

    :param file: name of the archive in its folder.
    :param bytes: size of the archive. Java would map a truncated file, and crash when it reads beyond the end.
    :param spark: version of Spark.
    """

    file: str
    bytes: int
    spark: str


def with_archive(folder: Any, environment: Mapping[str, str], *, binary: str = SPARK_SUBMIT) -> dict[str, str]:
    """The environment for a spark-submit that uses an archive. An archive only saves time: if it cannot be used, the
    reason is logged and the environment is returned unchanged.

    Spark's defaults must be in a properties file, because their folder is not on the class path any more.

    :param folder: folder of the archive, as the connection's extra names it.
    :param environment: the environment in which spark-submit would be started.
    :param binary: name of the spark-submit program, as the connection has it.
    """
    try:
        if not isinstance(folder, str) or not Path(folder).is_absolute():
            raise EngineError(f"{EXTRA!r} in the connection's extra must be an absolute path, not {folder!r}.")
        archive = read(Path(folder))
        _check_folders(environment, binary)
    except EngineError as error:
        log.warning("spark-submit starts without its class archive: %s", error)
        return dict(environment)
    return _sharing(environment, Path(folder), f"-XX:SharedArchiveFile={Path(folder, archive.file)}")


def read(folder: Path) -> ClassArchive:
    """The archive of a folder.

    :raises EngineError: if the folder has no archive, or the archive is not whole.
    """
    again = f"Make it again: microbatch class-archive {folder}"
    try:
        archive = ClassArchive(**json.loads((folder / FACTS).read_text(encoding="utf-8")))
        size = (folder / archive.file).stat().st_size
    except FileNotFoundError as error:
        raise EngineError(f"there is no class archive in {folder} ({error.filename} is missing). {again}") from error
    except (OSError, ValueError, TypeError) as error:
        raise EngineError(f"the class archive in {folder} cannot be read: {error}. {again}") from error
    if size != archive.bytes:
        raise EngineError(f"{folder / archive.file} has {size} bytes, and was made with {archive.bytes}. {again}")
    return archive


def make(folder: Path, *, conf: Mapping[str, str], binary: str = SPARK_SUBMIT) -> ClassArchive:
    """Make or replace the archive of a folder: run a small batch by spark-submit on this machine, and have its Java
    write down the classes that it has loaded.

    :param folder: the folder in which spark-submit will find the archive. Java needs the archive to stay there, and the
        jars to stay where they are now.
    :param conf: Spark settings of the batch; settings that change the class path belong here.
    :param binary: name of the spark-submit program.
    :raises EngineError: if Java cannot make an archive here, or the batch fails; the folder then keeps its earlier
        archive.
    """
    check_versions()
    environment = launch_environment(os.environ, extra={}, binary=binary, is_local=True)
    base = spark_defaults(environment, binary=binary)
    _check_folders(environment, binary)
    with _alone(folder):
        made = folder / f"classes-{uuid.uuid4()}.jsa"
        settings = {"spark.ui.enabled": "false", "spark.log.level": "WARN", **conf}
        try:
            with tempfile.TemporaryDirectory(prefix="microbatch-classes-") as scratch:
                spark = _write(made, environment, binary=binary, settings=settings, base=base, scratch=Path(scratch))
            sync(made)
            archive = ClassArchive(file=made.name, bytes=made.stat().st_size, spark=spark)
            written = made.with_suffix(".json")
            written.write_text(json.dumps(asdict(archive)) + "\n", encoding="utf-8")
            written.replace(folder / FACTS)
        finally:
            _tidy(folder)
    return archive


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: one process at a time makes an archive in it, so other files there are left over from a
    process that was killed."""
    with ExitStack() as held:
        try:
            (folder / _CONF).mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(folder / "lock", seconds=_TIMEOUT))
        except OSError as error:
            raise EngineError(f"{folder} cannot be made: {error}.") from error
        yield


def _tidy(folder: Path) -> None:
    """Remove all archives but the one in use. A driver that has mapped an older archive keeps it."""
    try:
        current = read(folder).file
    except EngineError:
        current = None
    for path in folder.glob("classes-*"):
        if path.name != current:
            path.unlink(missing_ok=True)


def _write(
    made: Path,
    environment: Mapping[str, str],
    *,
    binary: str,
    settings: Mapping[str, str],
    base: Path | None,
    scratch: Path,
) -> str:
    """Write the archive; return the version of Spark."""
    tag, key, sink = processes.new_tag(), BatchKey("live", 0), FileSink(str(scratch / "lake"))
    shipment = packaging.pack(tag=tag, job=_job(scratch, sink, key), code_files=(), conf=settings, base=base)
    try:
        log.info("running a batch, and writing the classes that it loads")
        batch = ["--master", "local[2]", "--py-files", ",".join(str(path) for path in shipment.py_files)]
        batch += [str(shipment.application), str(shipment.job)]
        command = [binary, "--properties-file", str(shipment.properties)]
        writing = _sharing(environment, made.parent, f"-XX:ArchiveClassesAtExit={made}", *_QUIET)
        _submit([*command, *batch], {**writing, "TMPDIR": str(scratch)})
        manifest = sink.manifest(BatchIdentity.at(key), 1)
        if manifest is None or not made.is_file():
            raise EngineError(f"{binary} ended well, but there is no {made}: Java cannot write it.")
        # With -Xshare:on Java ends instead of starting without the archive, so success proves that the archive fits.
        _submit(
            [*command, "--version"], _sharing(environment, made.parent, f"-XX:SharedArchiveFile={made}", "-Xshare:on")
        )
    finally:
        packaging.unpack(tag)
    return str(manifest.result["sparkVersion"])


def _submit(command: Sequence[str], environment: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{command[0]} has not ended in {_TIMEOUT:.0f} seconds.") from error
    if done.returncode != 0:
        last = "\n".join(done.stdout.splitlines()[-_TAIL:])
        raise EngineError(f"{command[0]} ended with status {done.returncode}. Its last lines:\n{last}")


def _sharing(environment: Mapping[str, str], folder: Path, *options: str) -> dict[str, str]:
    quoted = (f'"{option}"' if " " in option.partition("=")[2] else option for option in options)
    given = " ".join(part for part in (environment.get(_OPTIONS), *quoted) if part)
    return {**environment, _OPTIONS: given, "SPARK_CONF_DIR": str(folder / _CONF)}


def _check_folders(environment: Mapping[str, str], binary: str) -> None:
    """Check the folders that spark-submit puts on the class path: Java shares no classes while one of them has files.
    Of Spark's configuration folder, the defaults travel in the properties file, and template files do not count.

    :raises EngineError: naming the folder and the files.
    """
    places = {variable: environment.get(variable) for variable in ("HADOOP_CONF_DIR", "YARN_CONF_DIR")}
    folders = {variable: Path(place) for variable, place in places.items() if place}
    spark = configuration_folder(environment, binary=binary)
    if spark is not None:
        folders["Spark's configuration"] = spark
    for name, folder in folders.items():
        try:
            files = {path.name for path in folder.iterdir() if path.suffix != ".template"}
        except OSError:
            continue
        if folder == spark:
            files -= _CARRIED
        if files:
            raise EngineError(
                f"Java shares no classes while a folder with files is on its class path, and {name}, {folder}, holds "
                f"{', '.join(sorted(files))}. Keep these elsewhere, or go without a class archive."
            )


def _job(scratch: Path, sink: FileSink, key: BatchKey) -> Job:
    landing = scratch / "landing"
    landing.mkdir()
    rows = ({"id": n, "customer": f"c{n % 7}", "amount": n / 4, "ts": "2026-01-01T00:00:00"} for n in range(_ROWS))
    (landing / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = {
        "name": "rows",
        "format": "json",
        "schema": "id long, customer string, amount double, ts timestamp",
        "options": {},
        "groups": [{"paths": [str(landing / "rows.json")], "base_path": str(landing)}],
    }
    return Job(
        pipeline="class-archive",
        lane=key.lane,
        batch_id=key.id,
        epoch=1,
        batch_timestamp_ms=1_767_225_600_000,
        watermark_ms=0,
        sources={"rows": Read(reader="airflow_provider_microbatch.runtime.files:read", arguments=arguments)},
        stages=sink.stages_by_name(BatchIdentity.at(key), 1),
        transform=Transform(module="airflow_provider_microbatch.runtime.training", function="transform"),
    )
