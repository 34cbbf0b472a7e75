"""The files that travel with a job: the runtime, the user's code, the plan, and the settings.

The files lie in a folder of mode 0700 that is named after the attempt's tag, so that a later cancel of the attempt
finds and removes the folder too. Settings may hold secrets: they are in a file of mode 0600, never in an argument list.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

import airflow_provider_microbatch
from airflow_provider_microbatch.engines.processes import check_tag
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.runtime.secrets import FILE as SECRETS
from airflow_provider_microbatch.settings import is_private

_EPOCH = (1980, 1, 1, 0, 0, 0)
_PACKAGE = Path(airflow_provider_microbatch.__file__).parent
_APPLICATION = "microbatch_main.py"
_PROCESS = "process.json"


@dataclass(frozen=True, kw_only=True)
class Shipment:
    """Paths of the files that spark-submit is given.

    :param folder: the folder that holds all the others.
    :param application: the application file.
    :param job: the plan, the application's argument; in cluster mode also passed to ``--files``.
    :param py_files: the files for ``--py-files``.
    :param properties: the file for ``--properties-file``.
    """

    folder: Path
    application: Path
    job: Path
    py_files: tuple[Path, ...]
    properties: Path


def folder_of(tag: str) -> Path:
    """The folder of the shipment of the attempt with this tag, on the host that launched the attempt.

    :raises HandleError: if ``tag`` is no tag of an attempt: such a text could lead to any folder.
    """
    return Path(tempfile.gettempdir(), check_tag(tag))


def record_process(tag: str, *, pid: int, started: float) -> None:
    """Record in the attempt's folder which process runs the attempt: the process's command line does not carry the tag.

    :raises OSError: if the folder cannot be written.
    """
    _write_private(folder_of(tag) / _PROCESS, json.dumps({"pid": pid, "started": started}))


def is_recorded(tag: str, *, pid: int, started: float) -> bool:
    """Whether that process runs the attempt, according to the file that the launching process has put in a folder of
    this user alone. A checkpoint can name any process; it cannot make a folder of this user."""
    folder = folder_of(tag)
    if not is_private(folder):
        return False
    try:
        told = json.loads((folder / _PROCESS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(told == {"pid": pid, "started": started})


def module_files(modules: Iterable[str], folder: Path) -> list[Path]:
    """Python modules as files that can travel; a package becomes a zip, which is made in the folder.

    :param modules: top-level names.
    :raises EngineError: if a module is not installed here, or has no files.
    """
    found = []
    for name in modules:
        taken = [path.name for path in (folder / f"{name}.zip", folder / f"{name}.py") if path.exists()]
        if taken == [f"{name}.py"] and _is_module(name, folder / taken[0]):
            continue  # it travels already: the file of the transform defines the source too
        if taken:
            raise EngineError(
                f"module {name!r}, which the batch's reader or writer needs, and a file of yours, {taken[0]}, have one "
                "name: one would hide the other. Rename yours."
            )
        found.append(_module_file(name, folder))
    return found


def pack(
    *,
    tag: str,
    job: Job,
    code_files: Iterable[str],
    conf: Mapping[str, str],
    base: Path | None,
    secrets: Mapping[str, str] | None = None,
) -> Shipment:
    """Write a shipment.

    :param tag: the attempt's tag; unique.
    :param job: the plan.
    :param code_files: absolute paths of the user's Python files and zips.
    :param conf: Spark settings; they win over ``base``.
    :param secrets: secrets that readers need beside the job, by name. The driver removes their file after reading it.
    :param base: a properties file whose lines go first, since spark-submit reads only one properties file.
    :raises EngineError: if a file cannot be read.
    """
    folder = folder_of(tag)
    try:
        folder.mkdir(mode=0o700)
        application = Path(shutil.copyfile(_PACKAGE / "runtime" / "main.py", folder / _APPLICATION))
        plan = folder / "job.json"
        _write_private(plan, job.to_json())
        if secrets:
            _write_private(plan.with_name(SECRETS), json.dumps(dict(secrets)))
        py_files = [_zip_runtime(folder / "airflow_provider_microbatch_runtime.zip")]
        (folder / "code").mkdir(mode=0o700)
        py_files += [Path(shutil.copyfile(path, folder / "code" / Path(path).name)) for path in code_files]
        py_files += module_files(job.requires.modules, folder / "code")
        properties = folder / "spark.properties"
        inherited = read_properties(base) if base else ""
        _write_private(properties, f"{inherited}\n{render_properties(conf)}" if inherited else render_properties(conf))
    except EngineError:
        unpack(tag)
        raise
    except (OSError, ValueError) as error:  # ValueError: a text that is not UTF-8
        unpack(tag)
        raise EngineError(f"the job's files could not be put together in {folder}: {error}.") from error
    return Shipment(folder=folder, application=application, job=plan, py_files=tuple(py_files), properties=properties)


def unpack(tag: str) -> None:
    """Remove the shipment with this tag, if it is on this host. A link in its place is not followed.

    :raises HandleError: if ``tag`` is no tag of an attempt.
    """
    shutil.rmtree(folder_of(tag), ignore_errors=True)


def render_properties(conf: Mapping[str, str]) -> str:
    """Settings in the format of ``java.util.Properties.load``, which spark-submit reads as UTF-8."""
    return "".join(f"{_escape(key, key=True)}={_escape(value)}\n" for key, value in conf.items())


def read_properties(path: Path) -> str:
    """The text of a properties file, which spark-submit reads as UTF-8.

    :raises EngineError: if it cannot be read, naming the file.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise EngineError(f"Spark's settings in {path} cannot be read: {error}. Write the file as UTF-8.") from error


def property_of(path: Path | None, name: str) -> str | None:
    """The value of a setting in a properties file, from its last line of that name; None if the file or the setting is
    missing, or the setting has no value.

    :raises EngineError: if the file cannot be read.
    """
    if path is None or not path.is_file():
        return None
    # Line by line: the line after a setting without a value is not its value.
    setting = re.compile(rf"\s*{re.escape(name)}(?:\s*[=:]\s*|\s+|$)(.*)")
    found = filter(None, map(setting.fullmatch, read_properties(path).splitlines()))
    values = [one[1].strip() for one in found]
    return values[-1] or None if values else None


def _escape(text: str, *, key: bool = False) -> str:
    escaped = text.replace("\\", "\\\\")
    for sign, written in (("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"), ("\f", "\\f")):
        escaped = escaped.replace(sign, written)
    if key:
        return "".join(f"\\{sign}" if sign in " :=#!" else sign for sign in escaped)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _zip_runtime(path: Path) -> Path:
    """The package's ``__init__`` and its ``runtime``; byte for byte the same for the same sources."""
    return _zip(path, _PACKAGE, [_PACKAGE / "__init__.py", *sorted((_PACKAGE / "runtime").glob("*.py"))])


def zip_runtime(folder: Path) -> Path:
    """Write the runtime into the folder as a zip, for modules that import the runtime."""
    return _zip_runtime(folder / "airflow_provider_microbatch_runtime.zip")


def _is_module(name: str, file: Path) -> bool:
    spec = _found(name)
    origin = None if spec is None or spec.submodule_search_locations else spec.origin
    return origin is not None and Path(origin).read_bytes() == file.read_bytes()


def _found(name: str) -> ModuleSpec | None:
    """The module's spec, found without importing the module: it may need packages that only Spark's host has."""
    try:
        # `__main__` is the program that was started here; on Spark's host it is another program.
        return importlib.util.find_spec(name) if name.isidentifier() and name != "__main__" else None
    except ValueError:  # a module that was made by code, not imported
        return None


def _module_file(name: str, folder: Path) -> Path:
    spec = _found(name)
    if spec is not None and spec.origin is None:
        # A folder without an `__init__.py`, such as `jobs` beside DAG files: only the files that Python imports. Once
        # for each time that the folder above is in its path.
        locations = {os.path.realpath(one): Path(one) for one in spec.submodule_search_locations or ()}
        if len(locations) > 1:
            raise EngineError(
                f"module {name!r}, which the batch's reader or writer needs, cannot travel to Spark: it is in several "
                f"folders, {' and '.join(sorted(locations))}. Have it in one of them, or give the right one an "
                "__init__.py."
            )
        if locations:
            (location,) = locations.values()
            return _zip(folder / f"{name}.zip", location, _files(location, "*.py"))
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise EngineError(
            f"module {name!r}, which the batch's reader or writer needs, cannot travel to Spark: it is not installed "
            "here as Python files. Install it where the task runs."
        )
    origin = Path(spec.origin)
    if not spec.submodule_search_locations:
        return Path(shutil.copyfile(origin, folder / origin.name))
    return _zip(folder / f"{name}.zip", origin.parent, _files(origin.parent, "*"))


def _files(package: Path, pattern: str) -> list[Path]:
    found = (path for path in package.rglob(pattern) if path.is_file() and not path.is_symlink())
    return sorted(path for path in found if "__pycache__" not in path.parts)


def _zip(path: Path, package: Path, sources: Iterable[Path]) -> Path:
    """Write modules of a package into an archive that Python can import; the same bytes for the same sources."""
    names = {source: Path(package.name, source.relative_to(package)) for source in sources}
    folders = {folder for name in names.values() for folder in name.parents} - {Path()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in sorted(folders):
            if folder / "__init__.py" not in names.values():
                # Python imports nothing from a folder that has no entry of its own.
                archive.writestr(zipfile.ZipInfo(f"{folder.as_posix()}/", _EPOCH), b"")
        for source, name in names.items():
            archive.writestr(zipfile.ZipInfo(name.as_posix(), _EPOCH), source.read_bytes(), zipfile.ZIP_DEFLATED)
    return path
