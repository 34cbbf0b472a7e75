"""Moves of brokers and topics: brokers that do not answer, commits that come late, publishers that die in between,
retention, compaction, marks that age out, are brought back, or lie in another topic since."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks.kafka.mark import key_of
from tests.simulator.broker import COMPACT, LATE, UNANSWERED, UNDONE, Record
from tests.simulator.moves import MOVES, move
from tests.simulator.moves_of_restores import (
    an_hour,
    forget_clears,
    put_sources_right,
    run_again,
    stop_everybody,
    whole,
)
from tests.simulator.processes import FROZEN, Process
from tests.simulator.promises import look
from tests.simulator.systems import MARKS, TOPIC, FilesIntoTopic, FilesIntoTopicAndTable
from tests.simulator.world import Broken

if TYPE_CHECKING:
    from tests.simulator.subject import Subject
    from tests.simulator.world import World

MARKS_AGE = "marks age"
_TURNS = 600


def _first(world: World) -> Subject:
    return next(iter(world.subjects.values()))


@move("the brokers cannot be reached", weight=3, topics=True)
def unreachable(world: World) -> str | None:
    world.broker.unreachable = True
    return "the brokers cannot be reached"


@move("the brokers can be reached again", weight=6, always=True, topics=True)
def reachable(world: World) -> str | None:
    if not world.broker.unreachable:
        return None
    world.broker.unreachable = False
    return "the brokers can be reached again"


@move("a commit to come is lost, or its answer", weight=5, topics=True)
def commit_lost(world: World) -> str | None:
    fate = world.random.choice([UNDONE, UNANSWERED])
    world.broker.next_commits.append(fate)
    return f"a commit to come is {fate}"


@move("a commit to come is under way for long", weight=5, topics=True)
def commit_late(world: World) -> str | None:
    """Whoever has sent it may be dead by then, or fenced."""
    world.broker.next_commits.append(LATE)
    return "a commit to come is under way for long"


@move("a publisher dies or falls asleep in its transaction", weight=10, topics=True)
def publisher_dies(world: World) -> str | None:
    """Anywhere between its first record and the answer to its commit."""
    before = world.random.choice(["kafka: send", "kafka: commit", "kafka: the answer", "the answer to a commit"])
    process = _somebody_before(world, before)
    if process is None:
        return None
    if world.random.random() < 0.6:
        world.processes.kill(process)
    else:
        process.state = FROZEN
    return f"{process.name} is {process.state} before: {process.at}"


def _somebody_before(world: World, operation: str) -> Process | None:
    """All go on, and data lands and is looked for, until somebody is about to do that."""
    world.say(f"meanwhile: {MOVES['data lands'].happen(world)}, {MOVES['the scheduler looks'].happen(world)}")
    for _ in range(_TURNS):
        threads = [thread for process in world.processes.living() for thread in world.processes.ready(process)]
        for thread in threads:
            if thread.process.at.startswith(operation):
                return thread.process
            if thread in world.processes.ready(thread.process):
                world.processes.go_on(thread)
        look(world)
        if not threads:
            break
    return None


@move("retention of the topic", weight=3, topics=True)
def retention(world: World) -> str | None:
    """Whoever has kept up with the topic has had what goes."""
    logs = world.broker.topics[TOPIC].logs
    for log in logs:
        log.start = max(log.start, world.random.randint(0, len(log.records)))
    return f"the topic begins at {[log.start for log in logs]}"


@move("the marks are compacted", weight=4, topics=True)
def compacted(world: World) -> str | None:
    removed = world.broker.compact(MARKS) if MARKS in world.broker.topics else 0
    return f"{removed} records of the marks are compacted" if removed else None


@move("marks age out", weight=5, kit=MARKS_AGE, topics=True)
def marks_age(world: World) -> str | None:
    """The topic of the marks has another policy for a while, and the oldest are gone."""
    topic = world.broker.topics.get(MARKS)
    if topic is None or _is_in_question(world):
        return None
    topic.policy, (log,) = f"{COMPACT},delete", topic.logs
    end, needed = world.broker.end((MARKS, 0), committed=True), _needed_marks(world)
    held = (offset for offset, record in enumerate(log.records) if record.key in needed)
    log.start = max(log.start, min(end - world.random.choice([0, 1, 1, 2, 3, 5, 8]), *held, end))
    return f"the marks have {topic.policy}, and begin at {log.start} of {end}"


def _is_in_question(world: World) -> bool:
    """Whether it is asked at the moment whose batches the topic has, or which: without marks nothing tells."""
    subject = _first(world)
    return len(world.subjects) > 1 or subject.table_is_older or subject.kept is not None


def _needed_marks(world: World) -> set[bytes | None]:
    """Keys of the marks of batches that are in no commit log yet: beside their marks nothing says that they are in."""
    needed = set[bytes | None]()
    for subject in world.subjects.values():
        checkpoint = subject.checkpoint()
        for name in checkpoint.lanes():
            lane = checkpoint.lane(name)
            left = set(lane.offset_log.ids()) - set(lane.commit_log.ids())
            needed |= {key_of(TOPIC, BatchKey(name, number)) for number in left}
    return needed


@move("a mark is taken out", weight=5, kit=MARKS_AGE, topics=True)
def mark_taken_out(world: World) -> str | None:
    """By a record of its key without a value: of the oldest batch, or of any."""
    if MARKS not in world.broker.topics or _is_in_question(world):
        return None
    records, needed = world.broker.log((MARKS, 0)).records, _needed_marks(world)
    keys = sorted({one.key for one in records if one.is_committed and one.key and one.key not in needed})
    if not keys:
        return None
    key = keys[0] if world.random.random() < 0.5 else world.random.choice(keys)
    world.broker.write((MARKS, 0), Record(key=key))
    return f"the mark {key.decode()} is taken out"


@move("the policy of the marks is put right", weight=12, always=True, topics=True)
def policy_put_right(world: World) -> str | None:
    topic = world.broker.topics.get(MARKS)
    if topic is None or topic.policy == COMPACT:
        return None
    topic.policy = COMPACT
    return "the policy of the marks is put right"


@move("lost marks are brought back", weight=8, kit=MARKS_AGE, topics=True)
def marks_brought_back(world: World) -> str | None:
    """Some or all of them, in any order, behind those of later batches."""
    lost = _lost_marks(world)
    if not lost:
        return None
    found = world.random.sample(lost, world.random.randint(1, len(lost)))
    # Whoever tries a batch next that is in, and in no log, has to find it.
    process = _somebody_before(world, "kafka: the answer to a commit") if world.random.random() < 0.6 else None
    if process is not None:
        world.processes.kill(process)
        world.say(f"{process.name} is dead before: {process.at}")
    for record in found:
        world.broker.write((MARKS, 0), record)
    return f"{len(found)} of {len(lost)} lost marks are brought back"


def _lost_marks(world: World) -> list[Record]:
    """Of each batch the newest, if it is not there any more. A record without a transaction is a person's copy."""
    if MARKS not in world.broker.topics:
        return []
    log, marks, newest = world.broker.log((MARKS, 0)), dict[bytes | None, Record](), dict[bytes | None, int]()
    for offset, record in enumerate(log.records):
        if record.is_committed:
            newest[record.key] = offset if record.value is not None else -1
            marks |= {record.key: record} if record.value is not None else {}
    return [Record(key=key, value=one.value) for key, one in marks.items() if newest[key] < log.start]


@move("the marks are copied to a topic made anew", weight=2, topics=True)
def marks_copied(world: World) -> str | None:
    """As where they were restored from elsewhere. Their offsets are others there, and so is the topic's id."""
    subject = _first(world)
    if MARKS not in world.broker.topics or subject.kept is not None or subject.moves_to is not None:
        return None
    if len(world.subjects) > 1 or any(one.at.startswith("kafka") for one in world.processes.living()):
        return None  # who has found the topic before goes on with what he was told
    world.broker.settle()
    old = world.broker.topics[MARKS]
    (log,) = old.logs
    kept = [(at, one) for at, one in enumerate(log.records) if one.is_committed and at not in log.compacted]
    world.broker.make(MARKS, partitions=1, policy=old.policy)
    new = world.broker.log((MARKS, 0))
    new.records += [Record(key=one.key, value=one.value) for _, one in kept]
    new.start = sum(at < log.start for at, _ in kept)  # those that have aged out are elsewhere, and can be brought back
    if _lost_marks(world) or world.random.random() < 0.5:
        return "the marks are copied to a topic made anew"
    know_marks_anew(world, subject)
    return "the marks are copied to a topic made anew, and the entry about the old one is removed"


def know_marks_anew(world: World, subject: Subject) -> bool:
    """A person removes the entry that the error about another topic of marks names. False if it names none."""
    tables = subject.checkpoint().tables
    return not is_known(world, subject) and world.disk.remove(
        tables.where_of(_place(world, subject)).removeprefix("/disk/")
    )


def is_known(world: World, subject: Subject) -> bool:
    """Whether the checkpoint knows no other topic of marks than the one that is there."""
    known = subject.checkpoint().tables.get(_place(world, subject))
    marks = world.broker.topics.get(MARKS)
    return known is None or (marks is not None and known == base64.urlsafe_b64decode(f"{marks.id}==").hex())


def _place(world: World, subject: Subject) -> str:
    return f"{subject.system.sink().tables[0].location()}#{world.broker.topics[TOPIC].id}"


@move("the topic is made anew", weight=4, topics=True)
def topic_made_anew(world: World) -> str | None:
    """Without what it had. The marks go too, at once or when an error says so; then all is run again."""
    subject = whole(world)
    if subject is None or subject.options.retained is not None or subject.before or subject.options.cleans:
        return None
    checkpoint = subject.checkpoint()
    ids = checkpoint.commit_log.ids()
    # What a command has taken out is in no log that could be run again, and what was counted over neither.
    if not ids or ids[0] != 0 or checkpoint.maintenance.changed_ms() is not None or not is_well(world, subject):
        return None
    stop_everybody(world)
    world.broker.settle()
    put_sources_right(subject)
    forget_clears(world, subject)
    world.broker.make(TOPIC, partitions=2, policy="delete")
    if isinstance(subject.system, FilesIntoTopic):
        subject.system.is_cut_off = False
    subject.table_is_older, world.touched = True, True
    told = ""
    if world.random.random() < 0.5:
        an_hour(world)
        stop_everybody(world)
        told = ", an hour before its marks go"
        if any(subject.system.attempts() if isinstance(subject.system, FilesIntoTopic) else ()):
            raise Broken("a topic that was made anew hides what it has lost", f"{subject.system.published()}")
    world.broker.topics.pop(MARKS, None)
    run_again(world, subject)
    return f"the topic is made anew{told}"


@move("the table behind the topic is full", weight=6, always=True, topics=True)
def behind_is_full(world: World) -> str | None:
    system = _first(world).system
    if not isinstance(system, FilesIntoTopicAndTable) or world.full is not None:
        return None
    world.full = system.table_behind
    return "the table behind the topic is full"


@move("the table behind the topic has room again", weight=5, always=True, topics=True)
def behind_has_room(world: World) -> str | None:
    if world.full is None:
        return None
    world.full = None
    return "the table behind the topic has room again"


def put_topics_right(world: World) -> None:
    """Troubles of brokers end, and a person does what errors say of a topic of marks that was made anew. Half of the
    people bring lost marks back before they are asked for."""
    world.broker.unreachable, world.full = False, None
    world.broker.next_commits.clear()
    subject = _first(world)
    if MARKS not in world.broker.topics:
        return
    policy_put_right(world)
    if not is_known(world, subject):
        bring_marks_back(world)  # the entry is removed if the new topic has them all
        know_marks_anew(world, subject)
    if world.random.random() < 0.5:
        bring_marks_back(world)


def is_well(world: World, subject: Subject) -> bool:
    """Whether the brokers answer, and the marks are all there, as the checkpoint knows them."""
    topic = world.broker.topics.get(MARKS)
    if topic is None:
        return not world.broker.unreachable
    is_right = topic.policy == COMPACT and not _lost_marks(world) and is_known(world, subject)
    return is_right and not world.broker.unreachable


def bring_marks_back(world: World) -> bool:
    """All that were lost. False if none were."""
    lost = _lost_marks(world)
    for record in lost:
        world.broker.write((MARKS, 0), record)
    return bool(lost)
