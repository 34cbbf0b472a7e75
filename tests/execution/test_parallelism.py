"""Parallelism that changes: a batch keeps the one that it was planned with, and each split is read exactly once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.checkpoint.codec import OURS, decode_offsets, encode_offsets
from airflow_provider_microbatch.engines.code import resolve_code
from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.flow import FlowStep, PipelineFlow
from airflow_provider_microbatch.runtime.job import Flow, Job
from tests.execution.world import CODE, Killed, World, run_identity
from tests.support.inline_engine import InlineEngine

CRASHES = ("nowhere", "planned", "staging", "staged", "published")


def flow_of(readers: int | None) -> PipelineFlow:
    """Orders that are divided as they are read, then divided anew, three times as finely."""
    fine = None if readers is None else 3 * readers
    return PipelineFlow(
        [FlowStep("fine", ["orders"], partitions=fine)],
        {"": "fine"},
        partitions={} if readers is None else {"orders": readers},
    )


def die(*_: object, **__: object) -> None:
    raise Killed


class Chain:
    """Runs of one pipeline, each with a parallelism of its own, some of which die."""

    def __init__(self, root: Path) -> None:
        self.world = World(root)
        self.told: dict[int, list[tuple[int | None, int | None]]] = {}
        """By batch, how each attempt that was started divided sources and nodes."""

    def run(self, number: int, readers: int | None, crash: str = "nowhere", **again: int) -> None:
        self.world.options["transform"] = flow_of(readers)
        points: dict[str, Callable[[Job], None]] = {"staging": die, "staged": die}
        engine = InlineEngine(
            before_stage=points["staging"] if crash == "staging" else self._note,
            after_stage=points["staged"] if crash == "staged" else lambda job: None,
        )
        run, execution = run_identity(number, **again), self.world.execution
        _, flow = resolve_code(flow_of(readers), base=self.world.root)
        if crash == "planned":
            execution.plan(run)
            return
        if crash == "published":
            execution.commit = die  # type: ignore[method-assign, assignment]
        try:
            execution.run(run=run, engine=engine, code=CODE, transform=flow)
        except Killed:
            assert crash != "nowhere"

    def _note(self, job: Job) -> None:
        flow = job.transform
        assert isinstance(flow, Flow)
        self.told.setdefault(job.batch_id, []).append((flow.partitions.get("orders"), flow.nodes[0].partitions))


@pytest.mark.slow
@given(
    chain=st.lists(st.tuples(st.integers(1, 16), st.integers(0, 64), st.sampled_from(CRASHES)), min_size=1, max_size=6)
)
@settings(max_examples=30, deadline=None)
def test_of_any_chain_of_changes_each_split_is_in_the_table_once(chain: list[tuple[int, int, str]]) -> None:
    with TemporaryDirectory() as folder:
        one, landed = Chain(Path(folder)), 0
        planned: dict[int, int] = {}
        for number, (readers, splits, crash) in enumerate(chain):
            for _ in range(splits):
                one.world.land(landed)
                landed += 1
            before = one.world.checkpoint.offset_log.latest_id()
            one.run(number, readers, crash)
            after = one.world.checkpoint.offset_log.latest_id()
            if after is not None and after != before:
                planned[after] = readers
            one.world.expire_leases()
        for number in (len(chain), len(chain) + 1):
            before = one.world.checkpoint.offset_log.latest_id()
            one.run(number, 5)
            after = one.world.checkpoint.offset_log.latest_id()
            if after is not None and after != before:
                planned[after] = 5
        found = [id for ids in one.world.table().values() for id in ids]
        assert sorted(found) == list(range(landed))
        for batch, attempts in one.told.items():
            assert attempts == [(planned[batch], 3 * planned[batch])] * len(attempts), (batch, attempts)


def test_a_retry_and_a_replay_divide_as_planned_and_the_next_plan_as_written_now(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    chain.world.land(0)
    chain.run(0, 2, "planned")
    chain.run(0, 3, try_number=2)
    chain.world.land(1)
    chain.run(1, 3)
    chain.run(0, 1, clear_number=1)
    chain.world.land(2)
    chain.run(2, None)
    chain.run(2, 7, clear_number=1)
    assert chain.told == {0: [(2, 6), (2, 6)], 1: [(3, 9)], 2: [(None, None), (None, None)]}
    assert chain.world.table() == {0: [0], 1: [1], 2: [2]}


def test_an_entry_has_it_among_what_spark_passes_over_and_nonsense_there_is_refused(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    chain.world.land(0)
    chain.run(0, 2)
    log = chain.world.checkpoint.offset_log
    read = log.read(0)
    assert read is not None
    assert read[0].parallelism == {"orders": 2, "fine": 6}
    _, head, *_ = read[1].decode().splitlines()
    assert f'"{OURS}":' in head.partition('"parallelism"')[0]
    assert encode_offsets(decode_offsets(read[1], where="here"), version="v2") == read[1]
    for nonsense in (b"0", b"-1", b"true", b'"2"', b"null"):
        with pytest.raises(CorruptEntryError, match="divided"):
            decode_offsets(read[1].replace(b'"orders":2', b'"orders":' + nonsense), where="here")
