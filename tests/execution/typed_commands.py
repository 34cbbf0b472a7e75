"""Every command that changes a checkpoint or a table, as it is typed, each in a world in which it has something to do;
and what has to be true of that world whatever became of the command."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.checkpoint.by_hand import is_position
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.execution.intervals import lane_of
from airflow_provider_microbatch.sources.file import FileSource
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.kept_tables import kept_table, planned_where_another_is, refused, restored_and_planned_anew
from tests.execution.maintaining import expire_all, filled, killed_at
from tests.execution.two_tables import Two
from tests.execution.world import KEY, World, run_identity

RUNS = 12
"""More than any of the worlds needs until there is nothing new."""
READS = frozenset({"check", "log", "show"})
AS_TYPED = re.compile("type it again|as it was typed")
OF_TWO = frozenset({"export", "import", "copy"})
WAYS = 8
"""More commands than anybody has to type."""

Ids = Counter[int]


@dataclass(frozen=True, kw_only=True)
class Typed:
    """:param prepared: a world in which the command has something to do, and nobody is alive.
    :param words: what is typed behind ``microbatch``.
    :param carried_on: the world as its DAG file names it once the command has come so far; None: as it was.
    :param wanted: how often each row has to be in the table at the end.
    :param is_done: whether it is refused from now on, since what it makes is there.
    """

    prepared: Callable[[Path], World]
    words: Callable[[World], list[str]]
    carried_on: Callable[[World], World] = lambda world: world
    wanted: Callable[[World], Ids] = lambda world: Counter(landed(world))
    is_done: Callable[[World], bool] = lambda world: False


def said(words: list[str]) -> tuple[int, str]:
    """Exit status of the command, and all that it prints."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        status = main(words)
    return status, told.getvalue()


def landed(world: World) -> Iterator[int]:
    """All rows that lie in the landing folders, or were archived there."""
    for path in sorted((world.root / "landing").rglob("*.json")):
        yield from (int(number) for number in re.findall(r'"id": (\d+)', path.read_text()))


def advised(text: str, world: World) -> list[list[str]]:
    """The commands that a text names for this place, in its order, without those that change nothing. One that is named
    as it was recorded has no place, and is none to be typed; the error of a torn entry has the entry's place."""
    found = [shlex.split(one) for one in re.findall(r"`microbatch ([^`]+)`", text)]
    found = [["repair", world.pipeline.checkpoint] if words == ["repair", "--dry-run"] else words for words in found]
    return [words for words in found if words[0] not in READS and _names_places(words)]


def _names_places(words: list[str]) -> bool:
    count = 2 if words[0] in OF_TWO else 1
    return len(words) > count and all(word.startswith("/") for word in words[1 : 1 + count])


def goes_on(given: Typed, world: World) -> World:
    """The pipeline runs until there is nothing new; where it is refused, somebody types what the error names."""
    typed, idle = 0, 0
    for number in range(100, 100 + RUNS + WAYS):
        expire_all(world.root)
        current = given.carried_on(world)
        try:
            summary = current.run(number)
        except MicroBatchError as error:
            refusal = str(error)
        else:
            idle = idle + 1 if summary is None else 0
            if idle == 1:
                return current
            continue
        typed += 1
        assert typed < WAYS, f"it does not come to an end: {refusal}"
        does(given, world, refusal)
    raise AssertionError("it does not come to an end")


def rests(given: Typed, world: World) -> World:
    """The pipeline goes on, and once more where somebody has typed what ``check`` prints then."""
    current = goes_on(given, world)
    return goes_on(given, world) if checked(given, world) else current


def does(given: Typed, world: World, text: str) -> None:
    """Somebody types the first command that a text names; where that is refused, what the refusal names. What takes
    batches out of a table has to be typed as it was: then he does that."""
    told = text
    for _ in range(WAYS):
        ways = advised(told, given.carried_on(world))
        assert ways or AS_TYPED.search(told), f"no way on is named: {told}, after {text}"
        typed = given.words(world)
        if AS_TYPED.search(told):
            kind = "--drop-output" if "--drop-output" in typed else typed[0]
            assert told == text or re.search(rf"{kind}[^`]*has to be typed again", text), f"it is not said: {text}"
        status, told = said(typed if AS_TYPED.search(told) else ways[0])
        if status == 0:
            return
    raise AssertionError(f"each way is refused: {told}, after {text}")


def checked(given: Typed, world: World) -> bool:
    """Somebody types what ``check`` prints until it finds nothing, or nothing that a command mends; whether that was
    anything."""
    seen: list[str] = []
    for _ in range(WAYS):
        expire_all(world.root)
        status, text = said(["check", given.carried_on(world).pipeline.checkpoint, "--table"])
        seen.append(text)
        if status == 0 or not advised(text, world):
            return len(seen) > 1
        does(given, world, text)
    raise AssertionError(f"it does not come to an end: {seen}")


def is_sound(given: Typed, world: World, current: World) -> None:
    """The promises, when the pipeline has come to rest."""
    current.janitor()
    assert Counter(rows_of(current)) == given.wanted(current)
    location = current.pipeline.checkpoint
    status, text = said(["check", location, "--table"])
    assert status == 0, text
    assert current.stages() == []
    assert current.checkpoint.leases.unfinished() == []
    assert current.checkpoint.maintenance.unfinished() is None
    if (query := world.root / "query" / "metadata").exists():
        _is_whole(current, query.parent)


def _is_whole(world: World, exported: Path) -> None:
    """What was exported is all that a pipeline goes on from: it reads nothing of what was committed then."""
    back = world.root / "back"
    status, text = said(["import", str(exported), str(back), "--pipeline", "orders"])
    assert status == 0, text
    log = World(world.root, checkpoint=str(back)).checkpoint
    kept = log.commit_log.ids()
    assert kept in ([0, 1, 2], [0, 1, 2, 3])
    files = sorted(int(name) for name in log.source_log("orders").list("") if name.isdecimal())
    assert files == kept


def rows_of(world: World) -> list[int]:
    """All rows, as often as they are there: those of the live lane, unless there are intervals; of two tables those of
    the first, which the second has too."""
    if isinstance(world, IntervalWorld):
        return world.ids()
    if not isinstance(world, Two):
        return sorted(row for found in world.table().values() for row in found)
    first, second = ([row for rows in table.values() for row, _ in rows] for table in world.tables())
    assert sorted(first) == sorted(second)
    return sorted(first)


def same(original: World) -> World:
    """A fresh one of the same place, as before the command."""
    world = type(original)(original.root)
    world.lake, world.sources = original.lake, dict(original.sources)
    world.options, world.clock = dict(original.options), original.clock
    return world


def _filled(root: Path, count: int = 3, **pipeline: object) -> World:
    world = filled(World(root, **pipeline), count)
    world.land(7)
    world.expire_leases()
    return world


LANE = lane_of(hour(1))


def _with_a_lane_of_after_the_backup(root: Path) -> World:
    world = IntervalWorld(root)
    for number in range(3):
        world.land_at(number + 0.5, number)
    world.backfill(hour(0), 0)
    shutil.copytree(root / "checkpoint", root / "backup")
    world.backfill(hour(1), 1)
    shutil.rmtree(root / "checkpoint")
    (root / "backup").rename(root / "checkpoint")
    world.expire_leases()
    return world


def _two_tables(root: Path) -> World:
    world = filled(Two(root), 2)
    world.land(7)
    world.expire_leases()
    return world


def _with_one_on_its_way(root: Path) -> World:
    """The newest batch is staged, and its task died."""
    world = filled(World(root), 2)
    world.land(7)
    world.staged(2)
    world.expire_leases()
    return world


def _damaged(root: Path) -> World:
    world = _filled(root)
    checkpoint = root / "checkpoint"
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "metadata").write_bytes(b"")
    (checkpoint / "attempts" / "live" / "2" / "1").write_bytes(b"")
    return world


def _half_renamed(root: Path) -> World:
    world = _filled(root)
    assert killed_at(22, lambda: said(["rename-source", world.pipeline.checkpoint, "orders", "sales"]))
    expire_all(root)
    assert world.checkpoint.names.half() is not None
    return world


def _as_renamed(world: World) -> World:
    """The DAG file calls the source so as the checkpoint does."""
    names = world.checkpoint.names
    half = names.half() is not None
    name = "sales" if half or names.renames() else "orders"
    world.sources = {name: FileSource(str(world.landing("orders")), format="json", schema="id long")}
    return world


def _with_another_source(root: Path) -> World:
    """The DAG file names another source, which is really new, and the one before no more."""
    world = filled(World(root), 2)
    world.land(7, source="refunds")
    world.sources = {"refunds": FileSource(str(world.landing("refunds")), format="json", schema="id long")}
    world.expire_leases()
    return world


def _refused_at_a_kept_table(root: Path) -> World:
    world = kept_table(root)[1]
    world.land(8)
    expire_all(root)
    return world


def _of_both(world: World) -> Ids:
    """The old checkpoint's rows stay, and each of the new one's comes once."""
    return Counter([0, 1, 2, *landed(world)])


def _adopting_another(root: Path) -> World:
    world = planned_where_another_is(root)
    refused(world, 0)
    world.land(8)
    expire_all(root)
    return world


def _adopted_or_not(world: World) -> Ids:
    """What is adopted counts for what was planned, of which row 7 is then in no table: that is what it says. Else the
    pipeline counts on behind it."""
    is_adopted = (world.root / "checkpoint" / "adopted").exists()
    return Counter([1, 8] if is_adopted else [1, 7, 8])


def _adopting_its_own(root: Path) -> World:
    world = restored_and_planned_anew(root)
    world.land(8)
    expire_all(root)
    return world


def _with_a_clear_of_a_deleted_run(root: Path) -> World:
    world = filled(World(root), 3)
    world.checkpoint.replays.request(KEY, run=run_identity(0, clear_number=1), requested_ms=1)
    world.options["min_batches_to_retain"] = 2
    world.land(7)
    world.expire_leases()
    return world


def _to_be_tidied_up(root: Path) -> World:
    """Stages of the dead, more batches than are kept, files that are committed and neither archived nor taken down."""
    world = World(root)
    source = FileSource(
        str(world.landing()), format="json", schema="id long", clean_source="archive",
        archive_dir=str(root / "landing" / "archive"),
    )  # fmt: skip
    world.sources = {"orders": source}
    filled(world, 4)
    world.land(7)
    world.staged(4)
    world.options["min_batches_to_retain"] = 2
    world.expire_leases()
    return world


def _moved(world: World) -> World:
    """The DAG file names the place that the checkpoint is at."""
    moved = world.checkpoint.maintenance.places.moved()
    if moved is None:
        return world
    other = World(world.root, checkpoint=moved.target)
    other.clock = world.clock + 1_000
    return other


def _of_an_export(root: Path) -> World:
    """A checkpoint that is gone, but for an export of it, which is about to be imported."""
    world = _filled(root)
    old = root / "old"
    shutil.move(world.pipeline.checkpoint, old)
    assert said(["export", str(old), str(root / "export")])[0] == 0
    shutil.rmtree(old)
    return world


def _as_set(world: World) -> Ids:
    """Rows of files behind a position that was set are there once more, or never: if it was set."""
    found = Counter(landed(world))
    log = world.checkpoint.offset_log
    for number in log.ids():
        entry = log.get(number)
        if entry is not None and is_position(entry):
            if entry.ends["orders"] == '{"logOffset":0}':
                found += Counter([1, 2])
            else:
                found[7] -= 1
    return +found


def _set_behind(root: Path) -> World:
    """The file of row 7 is in the source's log, and in no batch: a run was rewound that had planned it."""
    world = _with_one_on_its_way(root)
    world.land(8)
    expire_all(root)
    assert said(["rewind", world.pipeline.checkpoint, "--to", "1"])[0] == 0
    return world


def _words(name: str, *more: str) -> Callable[[World], list[str]]:
    return lambda world: [name, world.pipeline.checkpoint, *more]


COMMANDS: dict[str, Typed] = {
    "rewind": Typed(prepared=_filled, words=_words("rewind", "--to", "0", "--drop-output")),
    "rewind to before all, v1": Typed(
        prepared=lambda root: _filled(root, 2, checkpoint_format="v1"),
        words=_words("rewind", "--to", "-1", "--drop-output"),
    ),
    "rewind of two tables": Typed(prepared=_two_tables, words=_words("rewind", "--to", "0", "--drop-output")),
    "rewind of a lane that the table alone knows": Typed(
        prepared=_with_a_lane_of_after_the_backup,
        words=_words("rewind", "--to", "-1", "--drop-output", "--lane", LANE),
        is_done=lambda world: not (world.lake / f"lane={LANE}" / "batch_id=0").exists(),
    ),
    "rewind of what is on its way": Typed(prepared=_with_one_on_its_way, words=_words("rewind", "--to", "1")),
    "set-offset back": Typed(
        prepared=_filled,
        words=_words("set-offset", "--source", "orders", "--offset", '{"logOffset":0}', "--allow-reread"),
        wanted=_as_set,
    ),
    "set-offset on": Typed(
        prepared=_set_behind,
        words=_words("set-offset", "--source", "orders", "--offset", '{"logOffset":2}', "--allow-skip"),
        wanted=_as_set,
    ),
    "rename-source": Typed(prepared=_filled, words=_words("rename-source", "orders", "sales"), carried_on=_as_renamed),
    "add-source": Typed(prepared=_with_another_source, words=_words("add-source", "refunds")),
    "start-behind": Typed(prepared=_refused_at_a_kept_table, words=_words("start-behind"), wanted=_of_both),
    "adopt": Typed(prepared=_adopting_its_own, words=_words("adopt", "1")),
    "adopt what is another's": Typed(
        prepared=_adopting_another, words=_words("adopt", "0", "--allow-skip"), wanted=_adopted_or_not
    ),
    "repair": Typed(prepared=_damaged, words=_words("repair")),
    "repair, giving up": Typed(prepared=_half_renamed, words=_words("repair", "--give-up"), carried_on=_as_renamed),
    "withdraw-clear": Typed(prepared=_with_a_clear_of_a_deleted_run, words=_words("withdraw-clear", "0")),
    "copy": Typed(
        prepared=_filled,
        words=lambda world: ["copy", str(world.root / "checkpoint"), str(world.root / "moved" / "here")],
        carried_on=_moved,
    ),
    "export": Typed(
        prepared=_filled,
        words=lambda world: ["export", world.pipeline.checkpoint, str(world.root / "query")],
        is_done=lambda world: (world.root / "query" / "metadata").exists(),
    ),
    "import": Typed(
        prepared=_of_an_export,
        words=lambda world: ["import", str(world.root / "export"), world.pipeline.checkpoint, "--pipeline", "orders"],
        is_done=lambda world: (world.root / "checkpoint" / "metadata").exists(),
    ),
    "janitor": Typed(prepared=_to_be_tidied_up, words=_words("janitor")),
}
