"""A Delta table that somebody has put back over a ``rewind`` of which not all is on record: how far the way on goes."""

from __future__ import annotations

import shutil

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.records import encode_record
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.upkeep.commands.steps import DropOutput
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import Killed, applied, expire_all, rewind
from tests.execution.test_dead_letters import typed
from tests.execution.test_restore_of_what_is_gone import NOBODYS
from tests.execution.test_restore_over_a_rewind import Counted, ids, is_refused, lake, many, rewound, three_batches
from tests.execution.test_restore_over_a_rewind import world as world
from tests.execution.two_tables import is_clean
from tests.execution.typed_commands import advised, said

pytestmark = pytest.mark.slow  # tables, services or worlds that live long


def records_left_behind(world: Counted) -> None:
    """As an export of the checkpoint does."""
    shutil.rmtree(world.root / "checkpoint" / "maintenance")


def half_on_record(world: Counted) -> None:
    """Of two rewinds the nearer one is on record, and the RESTORE goes to before both."""
    for head in (2, 4, 6, 8):
        world.batch(head)
    before = lake(world).version()
    rewound(world, 0)
    world.batch(8)
    world.batch(9)
    world.batch(10)
    records_left_behind(world)
    rewound(world, 2)
    lake(world).restore(before)


def at_ones_word(world: Counted, told: str) -> None:
    """What the rows are of is on no record, so a person has to say that it is read again."""
    (words,) = advised(told, world)
    expire_all(world.root)
    version = lake(world).version()
    status, text = said(words)
    assert (status, lake(world).version()) == (2, version)
    assert "what they had read is on no record" in text
    assert said([*words, "--allow-skip"])[0] == 0


def test_where_one_that_came_back_is_on_no_record_all_is_read_again(world: Counted) -> None:
    half_on_record(world)
    told = is_refused(world, lambda: world.run(50))
    assert "--to -1 --drop-output" in told
    at_ones_word(world, told)
    world.rests()
    assert ids(world) == list(range(1, 11))
    assert is_clean(world)


def test_who_keeps_the_rows_has_no_rewind_to_type_any_more(world: Counted) -> None:
    """It would read all of them again, beside those that are kept, and no check would find that."""
    half_on_record(world)
    (words,) = advised(is_refused(world, lambda: world.run(50)), world)
    expire_all(world.root)
    text = said(words)[1]
    assert "is in the table twice then" in text
    assert "Do not type this again then" in text
    assert f"`microbatch check {world.pipeline.checkpoint} --table` tells whether a rewind is still needed" in text
    lake(world).update(predicate="lane = 'live' AND batch_id IN (1, 2, 3)", updates=NOBODYS)
    told = " ".join(f"{one.message} {one.repair}" for one in check_table(world.checkpoint, everything=True).findings)
    assert "has rows again" not in told
    assert "--to -1" not in told


def test_nothing_is_said_of_keeping_rows_where_a_rewind_lacks_a_word(world: Counted) -> None:
    three_batches(world)
    before = lake(world).version()
    rewound(world, 0)
    lake(world).restore(before)
    (words,) = advised(is_refused(world, lambda: world.run(50)), world)
    expire_all(world.root)
    status, text = said([word for word in words if word != "--drop-output"])
    assert status == 2
    assert "With --drop-output it is taken out first" in text
    assert "UPDATE" not in text


@pytest.mark.parametrize("is_any_on_record", [True, False])
def test_no_nearer_rewind_is_accepted_then(world: Counted, is_any_on_record: bool) -> None:
    half_on_record(world)
    if not is_any_on_record:
        records_left_behind(world)
    expire_all(world.root)
    version = lake(world).version()
    status, text = said(["rewind", world.pipeline.checkpoint, "--to", "1", "--drop-output"])
    assert (status, lake(world).version()) == (2, version)
    assert "--to -1 --drop-output` takes them out" in text
    assert "Nothing was done" in text


def test_who_begins_anew_where_no_rewind_is_on_record_has_all_read_again(world: Counted) -> None:
    """What was exported has no record of commands. `check` finds it, and so does a publish."""
    many(world)
    records_left_behind(world)
    with pytest.raises(SinkError, match=r"has rows again that were taken out, .* check .* --table` names the way on"):
        world.batch(7)
    (told,) = (one.message for one in check_table(world.checkpoint, everything=True).findings if "again" in one.message)
    assert "rewind " in told
    assert "--to -1 --drop-output" in told
    at_ones_word(world, told)
    world.rests()
    assert ids(world) == list(range(1, 8))
    assert is_clean(world)


def test_an_older_rewind_whose_batches_had_the_same_numbers_does_not_count(world: Counted) -> None:
    for head in (2, 4, 6, 8):
        world.batch(head)
    rewound(world, -1)
    world.reads(2)
    world.rests()
    before = lake(world).version()
    rewound(world, 2)
    lake(world).restore(before)
    leads_on_by(world, 2)


def test_one_that_was_given_up_before_it_took_anything_out_does_not_count(
    world: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise Killed

    three_batches(world)
    before = lake(world).version()
    expire_all(world.root)
    with monkeypatch.context() as patched:
        patched.setattr(DropOutput, "apply", killed)
        with pytest.raises(Killed):
            applied(world, rewind(-1))
    expire_all(world.root)
    assert said(["repair", world.pipeline.checkpoint, "--give-up"])[0] == 0
    assert lake(world).version() == before
    rewound(world, 1)
    lake(world).restore(before)
    leads_on_by(world, 1)


def leads_on_by(world: Counted, to: int) -> None:
    told = is_refused(world, lambda: world.run(50))
    assert f"--to {to} --drop-output" in told
    typed(world, told)
    head = int((world.root / "head").read_text())
    world.rests()
    assert ids(world) == list(range(1, head + 1))
    assert is_clean(world)


def test_of_rows_that_were_adopted_and_made_anew_since_no_rewind_is_told(world: Counted) -> None:
    """They are of another plan of this checkpoint, which was restored from before it, say."""
    three_batches(world)
    key, before = BatchKey("live", 2), lake(world).version()
    attempt = world.checkpoint.attempts.get(key, 1)
    assert attempt is not None
    assert attempt.identity is not None
    rewound(world, 1)
    world.rests()
    records_left_behind(world)
    lake(world).restore(before)
    assert "has rows again" in " ".join(one.message for one in check_table(world.checkpoint, everything=True).findings)
    adopted = world.root / "checkpoint" / "adopted" / "live" / "2"
    adopted.parent.mkdir(parents=True)
    adopted.write_bytes(encode_record({"identity": attempt.identity.to_dict(), "epoch": 1}))
    told = " ".join(one.message for one in check_table(world.checkpoint, everything=True).findings)
    assert "has rows again" not in told


def test_where_no_rewind_goes_far_enough_none_is_accepted(world: Counted) -> None:
    """Retention has removed what to go back to; what a nearer one takes out nothing would bring back."""
    for head in (2, 4, 6):
        world.batch(head)
    before = lake(world).version()
    rewound(world, 0)
    for head in (6, 7, 8, 9, 10):
        world.batch(head)
    lake(world).restore(before)
    for number in (0, 1, 2):
        for log in ("offsets", "commits"):
            (world.root / "checkpoint" / log / str(number)).unlink()
    expire_all(world.root)
    version = lake(world).version()
    status, text = said(["rewind", world.pipeline.checkpoint, "--to", "4", "--drop-output"])
    assert (status, lake(world).version()) == (2, version)
    assert "is not on record any more (retention)" in text
    told = is_refused(world, lambda: world.run(50))
    assert told in text
