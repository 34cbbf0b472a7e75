"""A JSON value of another type than ours, anywhere in a checkpoint. Whoever can write there, or a broken copy, must not
end runs, commands and the janitor by errors of Python that name no file."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import MicroBatchError, SourceError
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.execution.world import World, run_identity
from tests.support.inline_engine import InlineEngine

pytestmark = pytest.mark.slow

STRANGE: dict[type, tuple[Any, ...]] = {
    str: (-1, {"?": "?"}),
    int: ("?", 10**30),
    float: ("?",),
    bool: ("?",),
    type(None): (-1, ["?"]),
    list: ("?", [-1]),
    dict: (-1, {"?": "?"}),
}
"""What stands in for a value of ours: of another type, or none that can be there."""

ENTRIES = (
    "metadata",
    "microbatch/identity",
    "microbatch/pipelines/*",
    "microbatch/tables/*",
    "microbatch/refused/*",
    "microbatch/in-force/*",
    "offsets/0",
    "offsets/3",
    "commits/1",
    "sources/orders/1",
    "attempts/live/0/1",
    "attempts/live/3/1.end",
    "leases/live/3-2-*",
    "replays/live/0/1",
    "replays/live/0/1.end",
    "maintenance/1",
    "maintenance/1.end",
    "maintenance/1.decided",
)
"""One of each kind, and the plan that waits beside one that is committed."""

Deed = Callable[[World], object]


def said(*command: str) -> Deed:
    """A command at the world's checkpoint. It ends by itself, or says in a line why not."""

    def act(world: World) -> None:
        with contextlib.suppress(SystemExit):
            main([command[0], world.pipeline.checkpoint, *command[1:]])

    return act


READERS: tuple[Deed, ...] = (
    said("log"),
    said("show", "live/0"),
    said("check"),
)
WRITERS: tuple[Deed, ...] = (
    lambda world: world.run(3),
    lambda world: world.run(0, clear_number=2),
    lambda world: world.janitor(),
)


def _fails(sources: Any) -> Any:
    raise LookupError("no such column")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with entries of every kind: a batch that was cleared and replayed, one whose clear waits, an attempt
    that failed, one that died, a plan that was refused, a command."""
    world = World(tmp_path_factory.mktemp("kept"))
    for number in (0, 1):
        world.land(number)
        world.run(number)
    world.run(0, clear_number=1)
    back = ["--source", "orders", "--offset", '{"logOffset":0}', "--allow-reread"]
    assert main(["set-offset", world.pipeline.checkpoint, *back]) == 0
    away = world.landing().rename(world.root / "away")
    with pytest.raises(SourceError):
        world.run(2)
    away.rename(world.landing())
    world.land(2)
    with pytest.raises(MicroBatchError):
        world.run(2, engine=InlineEngine(transform=_fails))
    world.checkpoint.replays.request(BatchKey(LIVE, 1), run=run_identity(1, clear_number=1), requested_ms=world.clock)
    world.staged(2, run=run_identity(2, try_number=2))
    world.expire_leases()
    return world.root


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """All values in a JSON value, with where they are; objects and lists too."""
    yield at, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from places(inner, (*at, name))


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    copy = value.copy()
    copy[at[0]] = replaced(copy[at[0]], at[1:], new)
    return copy


def spoilt(entry: Path) -> Iterator[tuple[str, str]]:
    """What was done to the entry, and its text then."""
    lines = entry.read_text().split("\n")
    for number, line in enumerate(lines):
        if line.startswith("{"):
            value = json.loads(line)
            for turn, (at, old) in enumerate(places(value)):
                found = STRANGE[type(old)]
                # That the type is another is seen by one code, whichever it is.
                for new in found[turn % 2 :][:1] if isinstance(old, str | None) else found:
                    changed = json.dumps(replaced(value, at, new))
                    yield f"{at} is {new!r}", "\n".join([*lines[:number], changed, *lines[number + 1 :]])


def put_back(root: Path, kept: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(kept, root)


def asks(deed: Deed, root: Path, entry: Path) -> bool:
    """Whether the deed reads the entry, where all is well."""
    asked = set[str]()

    def watched(real: Callable[..., object]) -> Callable[..., object]:
        def read(store: PosixStore, path: str, *more: int) -> object:
            asked.add(f"{store.location}/{path}")
            return real(store, path, *more)

        return read

    with contextlib.ExitStack() as stack:
        for name in ("get", "get_range", "get_versioned"):
            stack.enter_context(mock.patch.object(PosixStore, name, watched(getattr(PosixStore, name))))
        with contextlib.suppress(MicroBatchError):
            deed(World(root))
    return any(path.endswith(str(entry)) for path in asked)


def python_errors(root: Path, kept: Path, pattern: str) -> Iterator[str]:
    """Of deeds that read the entry; of all of them where none does."""
    (original,) = (kept / "checkpoint").glob(pattern)
    entry = root / original.relative_to(kept)
    asking = set[Deed]()
    for deed in (*READERS, *WRITERS):
        put_back(root, kept)
        if asks(deed, root, entry):
            asking.add(deed)
    deeds = [deed for deed in (*READERS, *WRITERS) if deed in asking or not asking]
    for what, text in spoilt(original):
        for number, deed in enumerate(deeds):
            if number == 0 or deed in WRITERS:
                put_back(root, kept)
                entry.unlink()
                entry.write_text(text)
            try:
                deed(World(root))
            except MicroBatchError:
                continue
            except Exception as error:
                yield f"{what}, deed {number}: {error!r}"


@pytest.mark.parametrize("pattern", ENTRIES)
def test_no_value_in_an_entry_makes_an_error_of_python(pattern: str, kept: Path, tmp_path: Path) -> None:
    found = list(python_errors(tmp_path / "world", kept, pattern))
    assert not found, f"{len(found)} of them:\n" + "\n".join(found[:20])
