"""Finds the user's code and checks it before a batch is planned, without running it."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import keyword
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.execution.engine import Code
from airflow_provider_microbatch.flow import PipelineFlow
from airflow_provider_microbatch.runtime.job import Flow, FlowNode, Transform

_TAKEN = frozenset(
    [
        *("airflow", "airflow_provider_microbatch", "google", "grpc", "microbatch_main"),
        *("numpy", "pandas", "py4j", "pyarrow", "pyspark"),
    ]
)
_ARCHIVES = (".zip", ".egg")


def resolve_code(
    transform: str | PipelineFlow | None,
    *,
    base: str | Path,
    py_files: Iterable[str] = (),
    bundle_name: str | None = None,
    bundle_version: str | None = None,
) -> tuple[Code, Transform | Flow | None]:
    """Find the files of a transform, or of the functions of a flow, and check them without importing anything.

    :param transform: ``path/to/file.py:function``, relative to ``base``; None for a pipeline without one.
    :param base: the folder that relative paths start from: the DAG bundle's.
    :param py_files: further files that travel, relative to ``base``: ``.py``, ``.zip`` or ``.egg``.
    :param bundle_name: recorded in the attempt.
    :param bundle_version: recorded in the attempt.
    :raises DefinitionError: if a file is missing, is no Python file, or cannot travel under its name; or if the file
        does not define the function.
    """
    flow = transform if isinstance(transform, PipelineFlow) else None
    functions = flow.functions if flow else (transform,) if isinstance(transform, str) else ()
    # Several functions may lie in one file.
    found = {function: _locate(function, base) for function in functions}
    paths = list(dict.fromkeys(path for path, _ in found.values()))
    for name in py_files:
        path = _find(name, base, what=f"py_files entry {name!r}")
        if path.suffix not in (".py", *_ARCHIVES):
            raise DefinitionError(f"py_files entry {name!r} is neither .py nor .zip nor .egg; zip a package's folder.")
        paths.append(path)
    _check_names(paths)
    called = {function: made for function, (_, made) in found.items()}
    code = Code(
        transform=None if transform is None else str(transform),
        files=tuple(str(path) for path in paths),
        code_hash=_hash(paths, flow=flow) if paths or flow else None,
        bundle_name=bundle_name,
        bundle_version=bundle_version,
    )
    return code, _flow(flow, called) if flow else next(iter(called.values()), None)


def _flow(flow: PipelineFlow, called: Mapping[str, Transform]) -> Flow:
    nodes = (
        FlowNode(
            name=step.name,
            inputs=tuple(step.inputs),
            transform=None if step.transform is None else called[step.transform],
            partitions=step.partitions,
        )
        for step in flow.steps
    )
    return Flow(nodes=tuple(nodes), outputs=dict(flow.outputs), partitions=dict(flow.partitions))


def _locate(transform: str, base: str | Path) -> tuple[Path, Transform]:
    """The file of the function, and how the runtime calls the function."""
    name, _, function = transform.rpartition(":")
    path = _find(name, base, what=f"transform {transform!r}")
    if path.suffix != ".py":
        raise DefinitionError(f"transform {transform!r} is not of the form 'path/to/file.py:function'.")
    _check_function(path, function)
    return path, Transform(module=path.stem, function=function)


def _find(name: str, base: str | Path, *, what: str) -> Path:
    path = Path(base, name).resolve()
    if not path.is_file():
        raise DefinitionError(f"{what}: there is no file {path}. Paths begin at the DAG bundle's folder, {base}.")
    return path


def _check_function(path: Path, function: str) -> None:
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise DefinitionError(f"{path}{line} is not Python that {sys.version.split()[0]} can read: {error}.") from error
    if any(isinstance(node, ast.AsyncFunctionDef) and node.name == function for node in tree.body):
        raise DefinitionError(f"{path}: {function!r} is an async function; Spark calls a plain one.")
    names = _top_level_names(tree.body)
    if function not in names and "*" not in names:
        others = ", ".join(sorted(node.name for node in tree.body if isinstance(node, ast.FunctionDef))) or "none"
        raise DefinitionError(f"{path} has no function {function!r} at its top level; its functions are: {others}.")


def _top_level_names(body: Iterable[ast.stmt]) -> set[str]:
    """Names that a module's top level binds, also inside its ``if`` and ``try``."""
    names: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(statement.name)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in statement.names)
        else:
            nested = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
            names |= _top_level_names(nested)
            targets = [child for child in ast.walk(statement) if isinstance(child, ast.Name)]
            names.update(target.id for target in targets if isinstance(target.ctx, ast.Store))
    return names


def _check_names(paths: Iterable[Path]) -> None:
    seen: dict[str, Path] = {}
    for path in paths:
        stem = path.stem
        if path.suffix == ".py" and (not stem.isidentifier() or keyword.iskeyword(stem)):
            raise DefinitionError(f"{path} cannot be imported: {stem!r} is no Python name. Rename the file.")
        if path.suffix == ".py" and (stem in sys.stdlib_module_names or stem in _TAKEN):
            raise DefinitionError(f"{path} would hide the module {stem!r}, which Spark needs. Rename the file.")
        if "," in path.name:
            raise DefinitionError(f"{path}: spark-submit takes no comma in a file's name. Rename the file.")
        if path.name in seen:
            raise DefinitionError(f"{path} and {seen[path.name]} travel under one name. Rename one of them.")
        seen[path.name] = path


def _hash(paths: Iterable[Path], *, flow: PipelineFlow | None) -> str:
    digest = hashlib.sha256()
    if flow is not None:
        # How the functions are connected affects the rows too. How rows are divided is part of a batch's plan instead.
        steps = [dataclasses.replace(step, partitions=None) for step in flow.steps]
        undivided = dataclasses.replace(flow, steps=steps, partitions={})
        digest.update(json.dumps(undivided.to_dict(), sort_keys=True).encode())
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
