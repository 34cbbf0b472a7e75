"""What an operator with several families of columns writes down of its state, such as ``transformWithState``.

Spark keeps the columns of the families in files beside the operator's partitions, and the addresses of these files in a
further one. An address in an attempt's own folder is none for the next attempt. So such an operator has a folder of the
attempt's own, in which its partitions are links to the shared ones, the files with the columns are copies, and the
addresses are written anew for each attempt. What Spark writes beside them goes to the shared folder, where names have
ids of their own, and the attempt tells the names with its state.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.runtime.other_state import refuse_other_first_attempt
from airflow_provider_microbatch.runtime.state_columns import are_kept_alike

SCHEMAS = "_stateSchema"
"""Folder of an operator with the columns of its families, by the name of the store."""

ADDRESSES = "_metadata/v2"
"""Folder of an operator with the addresses of these files, by batch."""

_RECORDS = ("_metadata/metadata", "0/_metadata/schema", "0/*/_metadata/schema")
"""What any other operator writes down of itself, and of its stores with their first partition, in its folder."""

_STORES, _PATHS = "stateStoreInfo", "stateSchemaFilePaths"
_NAME = re.compile(r"(?P<store>[A-Za-z0-9-]+)/[0-9]+_(?P<id>[0-9a-f-]{36})")

_ADDRESSES = re.compile(rf"state/[0-9]+/{ADDRESSES}/[0-9]+")
_SCHEMA = re.compile(rf"state/[0-9]+/{SCHEMAS}/{_NAME.pattern}")

Schemas = Mapping[str, Mapping[str, Any]]
"""By the number of the operator, what Spark has written down of it; the paths are those below :data:`SCHEMAS`."""


def is_addresses(path: str) -> bool:
    """Whether a file of a checkpoint holds such addresses, by its path."""
    return _ADDRESSES.fullmatch(path) is not None


def is_schema(path: str) -> bool:
    """Whether a file of a checkpoint holds the columns of families, by its path."""
    return _SCHEMA.fullmatch(path) is not None


def are_schemas(value: object) -> bool:
    """Whether the value is what :func:`take` returned. Numbers and names become paths."""
    try:
        return isinstance(value, Mapping) and all(
            operator.isdecimal() and all(_NAME.fullmatch(name) for name in names_in(told))
            for operator, told in value.items()
        )
    except (AttributeError, KeyError, TypeError):
        return False


def names_in(told: Mapping[str, Any]) -> Iterator[str]:
    """The names of the files with an operator's columns, below :data:`SCHEMAS`."""
    for store in told[_STORES]:
        yield from store[_PATHS]


def parse(text: str) -> dict[str, Any]:
    """What Spark has written down of an operator, of a file of :data:`ADDRESSES`.

    :raises ValueError: if it is of another form.
    """
    version, _, content = text.partition("\n")
    if version != "v2":
        raise ValueError(f"it is of version {version!r:.100}, not v2")
    told: dict[str, Any] = json.loads(content)
    try:
        return _with_paths(told, {path: "/".join(path.split("/")[-2:]) for path in names_in(told)})
    except (KeyError, TypeError) as error:
        raise ValueError(f"it names no files of columns: {error!r}") from error


def addressed(told: Mapping[str, Any], *, operator: str, batch_id: int) -> str:
    """The content of a file of :data:`ADDRESSES`.

    :param operator: address of the operator's folder, in which the files have the names of :func:`lent_names`.
    :param batch_id: the batch that has left the state.
    """
    lent = lent_names(told, batch_id=batch_id)
    paths = {name: f"{operator}/{SCHEMAS}/{lent[name]}" for name in lent}
    return "v2\n" + json.dumps(_with_paths(told, paths), separators=(",", ":"))


def lent_names(told: Mapping[str, Any], *, batch_id: int) -> dict[str, str]:
    """By name, the one that Spark is shown. Spark takes the number in it for the batch that has written the file, and
    removes files that are older than what it keeps, whoever still names them.

    :param batch_id: the batch that has left the state.
    """
    found = {name: _NAME.fullmatch(name) for name in names_in(told)}
    return {name: f"{match['store']}/{batch_id}_{match['id']}" for name, match in found.items() if match}


def lend(schemas: Schemas, *, shared: Path, own: Path, batch_id: int) -> None:
    """Make a folder of state that shows what is in the shared one, with addresses in itself.

    :param schemas: of the state that the batch goes on from.
    :param batch_id: the batch that has left this state.
    :raises FileExistsError: if the folder exists.
    :raises FileNotFoundError: if a file with columns is gone.
    """
    own.mkdir()
    for operator in _numbered(shared):
        told = schemas.get(operator.name)
        if told is None:
            (own / operator.name).symlink_to(operator, target_is_directory=True)
        else:
            _lend(told, operator, own / operator.name, batch_id)


def _numbered(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.isdecimal()]


def _lend(told: Mapping[str, Any], shared: Path, own: Path, batch_id: int) -> None:
    own.mkdir()
    for partition in _numbered(shared):
        (own / partition.name).symlink_to(partition, target_is_directory=True)
    for name, lent in lent_names(told, batch_id=batch_id).items():
        target = own / SCHEMAS / lent
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(shared / SCHEMAS / name, target)
    addresses = own / ADDRESSES
    addresses.mkdir(parents=True)
    text = addressed(told, operator=f"file://{own}", batch_id=batch_id)
    (addresses / str(batch_id)).write_text(text, encoding="utf-8")


def take(schemas: Schemas, *, shared: Path, own: Path, batch_id: int) -> dict[str, Any]:
    """Move what Spark has written into the attempt's own folder of state to the shared one. What is there stays: all
    that two attempts both write has ids of their own, or is the same.

    :param schemas: as :func:`lend` had them; empty where the folder was empty.
    :param batch_id: as :func:`lend` had it.
    :return: the same of the state that the attempt leaves.
    :raises ValueError: if Spark has written them in another form.
    :raises BatchFailure: if an attempt at the first batch has left other operators there. Nothing is moved then.
    """
    if not schemas:  # else Spark was shown what is there, and has compared
        _check_same_operators(shared, own)
    found = {}
    for folder in sorted(own.iterdir()):
        if folder.is_symlink():
            continue
        lent = {new: name for name, new in lent_names(schemas.get(folder.name, _NOTHING), batch_id=batch_id).items()}
        if (folder / ADDRESSES).exists():
            addresses = _numbered(folder / ADDRESSES)
            told = parse(max(addresses, key=lambda path: int(path.name)).read_text(encoding="utf-8"))
            found[folder.name] = _with_paths(told, {name: lent.get(name, name) for name in names_in(told)})
        _move(folder, shared / folder.name, but={f"{SCHEMAS}/{new}" for new in lent})
    return found


def _check_same_operators(shared: Path, own: Path) -> None:
    """Check that all operators that are in the shared folder are those of the attempt. The next batch would be shown
    the others', and read the attempt's state as theirs."""
    there, made = ({path.name: path for path in _numbered(folder)} for folder in (shared, own))
    if there.keys() - made.keys():
        refuse_other_first_attempt(f"operator {min(there.keys() - made.keys())} is missing")
    for operator, folder in sorted(there.items()):
        for record in (path.relative_to(folder) for pattern in _RECORDS for path in folder.glob(pattern)):
            mine = made[operator] / record
            if not mine.exists() or not are_kept_alike(mine.read_bytes(), (folder / record).read_bytes()):
                refuse_other_first_attempt(f"{operator}/{record} differs")


_NOTHING: Mapping[str, Any] = {_STORES: ()}


def _with_paths(told: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    stores = [{**store, _PATHS: [paths[path] for path in store[_PATHS]]} for store in told[_STORES]]
    return {**told, _STORES: stores}


def _move(source: Path, target: Path, *, but: set[str]) -> None:
    for folder, _, names in os.walk(source):  # partitions that are links are not entered
        below = Path(folder).relative_to(source)
        if str(below) == ADDRESSES:
            continue
        for name in names:
            if str(below / name) in but:
                continue
            (target / below).mkdir(parents=True, exist_ok=True)
            if not (target / below / name).exists():
                (Path(folder) / name).replace(target / below / name)
