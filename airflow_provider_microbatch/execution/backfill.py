"""The work of a run that has a data interval: a run of Airflow's backfill, or any run of an interval pipeline.

Such a run does one of three things. It runs again the batches that this very run, or for partitioned timetables an
earlier run of the same partition date, has planned before. Data of its interval that no batch has read becomes the one
batch of the interval's own lane, so that this batch can run at any time and beside others, and the live position does
not move. Data that batches have read before is left to them, or they are replayed, as ``on_overlap`` of the pipeline
says.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Relation, RunIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    BatchInProgressError,
    ConcurrentPlanError,
    IntervalError,
    NothingInIntervalError,
    SourceError,
)
from airflow_provider_microbatch.execution.engine import Code
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.fire import FireDecision
from airflow_provider_microbatch.execution.guard import held_by_another, known_to_be_held
from airflow_provider_microbatch.execution.intervals import (
    LaneRanges,
    batch_of,
    late_spans,
    longest_of,
    newest_of,
    read_only_by,
    taken_by,
    without_batch,
)
from airflow_provider_microbatch.execution.labels import names_of
from airflow_provider_microbatch.execution.letters_taken import AS_IT_IS
from airflow_provider_microbatch.execution.liveness import EngineOf, no_engine
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.own_batches import own_of_interval, runs_of
from airflow_provider_microbatch.execution.plan import Planner
from airflow_provider_microbatch.execution.planned import PlannedBatch
from airflow_provider_microbatch.execution.position import read_position
from airflow_provider_microbatch.execution.replay import (
    ask_again,
    check_place_again,
    check_replaceable,
    check_replayable,
)
from airflow_provider_microbatch.execution.stateful import check_intervals, check_no_live_state, check_replay
from airflow_provider_microbatch.execution.summary import RunSummary, summarize
from airflow_provider_microbatch.execution.unread import together, told, way_on
from airflow_provider_microbatch.pipeline import INTERVAL, REPLAY, SKIP, Pipeline
from airflow_provider_microbatch.sources.intervals import Interval, IntervalSurvey

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class _Overlap:
    """Batches of other lanes that hold data of the interval.

    :param committed: these can be replayed.
    :param unfinished: planned and not committed, or set aside; they are left to the runs that finish them.
    :param elsewhere: how much more data is in batches that the logs do not have, in words; empty if there is none.
    """

    committed: Sequence[BatchKey]
    unfinished: Sequence[BatchKey]
    elsewhere: str

    def __str__(self) -> str:
        parts = []
        if self.committed:
            parts.append(f"{names_of(self.committed)} read it")
        if self.unfinished:
            parts.append(f"{names_of(self.unfinished)} will, and is not committed or was set aside")
        if self.elsewhere:
            parts.append(f"{self.elsewhere} of it belong to a batch that is no longer, or not yet, in the logs")
        return "; ".join(parts) or "there is none"


class IntervalWork:
    """The work of one run with a data interval. Knows neither Airflow nor Spark.

    :param pipeline: the pipeline.
    :param checkpoint: its checkpoint.
    :param interval: the run's data interval.
    :param clock_ms: the time, milliseconds since the epoch.
    :param others_run: asked whether the orchestrator has made another run of the DAG that is not over; True too if it
        cannot tell.
    :param in_order: whether the run is one of those that the orchestrator makes in the order of their intervals, so
        that it makes no run for an earlier interval by itself any more.
    :param taken_seconds: how long to wait for the batch of another interval that has taken data of this one, in
        seconds: a run that plans it right now needs no longer.
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        checkpoint: Checkpoint,
        interval: Interval,
        clock_ms: Callable[[], int] = now_ms,
        others_run: Callable[[], bool] = lambda: True,
        in_order: bool = False,
        taken_seconds: float = 10.0,
    ) -> None:
        self._lookback_ms = 0 if pipeline.plan != INTERVAL else round((pipeline.lookback or 0) * 1000)
        self.key = batch_of(interval)
        self.at = self.key
        """The batch that :meth:`run` is at, for messages."""
        self._interval = interval
        self._pipeline = pipeline
        self._checkpoint = checkpoint
        self._clock_ms = clock_ms
        self._others_run = others_run
        self._in_order = in_order
        self._taken_seconds = taken_seconds
        self._lane = checkpoint.lane(self.key.lane)
        self._planner = Planner(pipeline=pipeline, checkpoint=checkpoint, lane=self._lane, clock_ms=clock_ms)

    def execution(self, key: BatchKey) -> Execution:
        """The state machine of a batch's lane."""
        return Execution(
            pipeline=self._pipeline, checkpoint=self._checkpoint, lane=key.lane, clock_ms=self._clock_ms
        )  # fmt: skip

    def should_fire(
        self, run: RunIdentity | None = None, *, engine_of: EngineOf = no_engine, searched_ms: int | None = None
    ) -> FireDecision:
        """The sensor's question, as :mod:`~airflow_provider_microbatch.execution.fire` has it for the live lane."""
        self._planner.check_identity()
        if searched_ms is None:  # it may read an entry of each lane; no plan is made without this check
            self._planner.check_names({})
        if run is not None and own_of_interval(
            self._checkpoint, run, self.key, newest_only=self._planner.own.was_searched(searched_ms)
        ):
            return FireDecision(fire=True, reason="this run has planned a batch")
        check_intervals(self._pipeline, self._checkpoint)
        if self._lane.offset_log.get(self.key.id) is not None:
            held = known_to_be_held(self._checkpoint, self.key, run, engine_of)
            return FireDecision(fire=held is None, reason=held or f"batch {self.key} is planned")
        surveys = self._surveys()
        early = self._too_early(surveys)
        if early is not None:
            return FireDecision(fire=False, reason=early)
        # With nothing unread too: no data of the past will come, and the operator behind the sensor skips and says why.
        unread = any(survey.unread for survey in surveys)
        return FireDecision(fire=True, reason=f"{self._interval} is over, with {'' if unread else 'no '}unread data")

    def plan(self, run: RunIdentity, *, code: Code | None = None) -> list[PlannedBatch]:
        """The batches to run now, in this order, each durable. A replay that is needed is requested, durably too.

        :param code: the code that the run has; None if the run does not know.
        :raises NothingInIntervalError: if there is nothing to do, with the reason.
        :raises IntervalError: if another interval has taken data of this one and has no batch of it.
        :raises BatchInProgressError: if another run is alive at the one batch that an earlier run of the partition has
            made, and that this one would replay.
        :raises AttemptFencedError: if another run is alive at a batch that other lanes have of the interval's data, and
            that has to be replayed: the run's retry makes it.
        :raises SourceError: if a source cannot read the range of a batch again that would have to be replayed.
        """
        self._planner.begin(run)
        self._planner.check_names({})
        own = own_of_interval(self._checkpoint, run, self.key)
        if any(key.lane == LIVE for key in own):
            log.info("Run %s has planned %s before", run.run_id, names_of(own))
            return self._ready(own, run, code)
        check_intervals(self._pipeline, self._checkpoint)
        planned_before = self._lane.offset_log.get(self.key.id) is not None
        # The interval is not surveyed then, unless other lanes' batches are to be replayed as well.
        surveys = [] if planned_before and self._pipeline.on_overlap == SKIP else self._surveys()
        overlap = self._overlap(surveys)
        if self._pipeline.plan == INTERVAL:
            self._check_live(surveys)
        if overlap.elsewhere and not planned_before:
            self._check_taken(surveys)
        if self._pipeline.on_overlap == REPLAY:
            # Before the interval's own batch takes what is unread: nothing would read that if this run were refused.
            for planned in self._to_ask([self.execution(key).load(key) for key in overlap.committed], run):
                self._check_again(planned)
        lane_batch = self._lane_batch(run, surveys)
        if self._pipeline.plan == INTERVAL:
            self._tell_unread(surveys, run)
            self._begin_record()
            # Not before: the data that this run was about to take would be late data for another run.
            self._checkpoint.intervals.had(self.key.lane)
        if lane_batch is not None and not own and self._is_committed(lane_batch):
            # The same interval under another run id, as a run made by hand has: it overlaps with itself.
            self._check_told(lane_batch)
            overlap = dataclasses.replace(overlap, committed=[*overlap.committed, lane_batch])
            lane_batch = None
        keys = list(overlap.committed) if self._pipeline.on_overlap == REPLAY else []
        if lane_batch is not None:
            keys.append(lane_batch)
        if not keys:
            # The sources were not looked at if the interval has had its batch: nothing is said of unread data then.
            found = "has had its batch of" if planned_before and not surveys else "has no unread data in"
            late = " Data that came after it is left to the lookback of a later interval." if "had" in found else ""
            raise NothingInIntervalError(
                f"pipeline {self._pipeline.name!r} {found} the data interval {self._interval}: {overlap}.{late}"
                + (" on_overlap='replay' would replay what is committed." if overlap.committed else "")
            )
        if overlap.committed or overlap.unfinished or overlap.elsewhere:
            # What is asked for is made in part then, and every square in the grid is green.
            partly = self._pipeline.on_overlap == REPLAY and overlap.elsewhere
            log.log(
                logging.WARNING if partly else logging.INFO, "Other batches have data of %s: %s%s",
                self._interval, overlap, ". That is not run again" if partly else "",
            )  # fmt: skip
        try:
            return self._ready(keys, run, code)
        except BatchInProgressError as busy:
            if keys == [lane_batch] and self._is_committed(keys[0]):
                raise
            # A skip is green: no run would come back for a batch that has taken its data from all other lanes, nor for
            # a replay of what the interval shares with others.
            raise AttemptFencedError(f"{busy} This run has {names_of(keys)} to make: try again.") from busy

    def run(self, *, run: RunIdentity, code: Code, **how: Any) -> RunSummary:
        """Plan, then run each batch to its commit; a retry goes on where this run ended.

        :param how: as for :meth:`Execution.run_planned`.
        """
        batches = []
        for planned in self.plan(run, code=code):
            self.at = planned.key
            # None: another run has committed it meanwhile.
            done = self.execution(planned.key).run_planned(planned, run=run, code=code, **how)
            batches.append(done or summarize(self._checkpoint, planned.key))
        return RunSummary(batches)

    def _begin_record(self) -> None:
        """Begin the record of interval runs, before there is a lane of this version, whose run is on record."""
        self._checkpoint.intervals.begin(newest_of(self._checkpoint.lanes()))

    def _wanted(self) -> Interval:
        """The interval, with the earlier spans whose data is late now; found before any source is looked at."""
        none_on_its_way = bool(self._lookback_ms) and self._in_order and not self._others_run()
        late = late_spans(
            self._checkpoint, self._interval, lookback_ms=self._lookback_ms, none_on_its_way=none_on_its_way
        )
        return dataclasses.replace(self._interval, late=late, whole=self._pipeline.plan == INTERVAL)

    def _surveys(self) -> list[IntervalSurvey]:
        return self._planner.sources.survey_interval(self._wanted(), self._held)

    def _tell_unread(self, surveys: Sequence[IntervalSurvey], run: RunIdentity) -> None:
        """Log the data that this run has passed, by the listing of its plan: every square in the grid is green."""
        names = self._planner.sources.names
        unread = {name: survey.passed for name, survey in zip(names, surveys, strict=False) if survey.passed}
        if not unread:
            return
        # While other runs are on their way, the data that they come for is no news.
        level = logging.INFO if self._others_run() else logging.WARNING
        length_ms = max(longest_of(self._checkpoint.intervals.lanes()), self._interval.end_ms - self._interval.start_ms)
        way = way_on(together(unread.values()), run=run, limit_ms=self._interval.end_ms, length_ms=length_ms)
        log.log(level, "%s It is older than the data interval %s of this run. %s", told(unread), self._interval, way)

    def _held(self, source: str) -> LaneRanges:
        return LaneRanges(self._checkpoint, source)

    def _overlap(self, surveys: Sequence[IntervalSurvey]) -> _Overlap:
        committed: list[BatchKey] = []
        unfinished: list[BatchKey] = []
        for key in sorted({key for survey in surveys for key in survey.holders}):
            commit = self._checkpoint.lane(key.lane).commit_of(key.id)
            # A batch that was set aside is the pipeline's like any other, once a replay has published it.
            is_out = commit is None or (commit.set_aside and not self._checkpoint.replays.is_answered(key))
            (unfinished if is_out else committed).append(key)
        elsewhere = _together((survey.elsewhere, survey.splits) for survey in surveys)
        return _Overlap(committed=committed, unfinished=unfinished, elsewhere=elsewhere)

    def _is_committed(self, key: BatchKey) -> bool:
        return self._checkpoint.lane(key.lane).commit_of(key.id) is not None

    def _too_early(self, surveys: Sequence[IntervalSurvey]) -> str | None:
        """Why an interval pipeline must not plan the interval yet; None if it may. There is no second batch for data
        that comes later. Where there is a live lane, the live lane reads such data."""
        if self._pipeline.plan != INTERVAL:
            return None
        if self._clock_ms() < self._interval.end_ms:
            return f"the data interval {self._interval} is not over"
        unsettled = _together((survey.unsettled, survey.splits) for survey in surveys)
        if unsettled:
            return f"{unsettled} in {self._interval} are too young to be read"
        return next((survey.waits for survey in surveys if survey.waits is not None), None)

    def _check_live(self, surveys: Sequence[IntervalSurvey]) -> None:
        """Check that the live lane has no unfinished batch from before the pipeline was planned by intervals, and no
        state. No interval's run takes up its data: a skip would be green, and the rows would be in no table.

        :raises IntervalError: if the live lane has such a batch, or state.
        """
        position = read_position(self._checkpoint.lane(LIVE))
        check_no_live_state(self._pipeline, self._checkpoint, position.last_commit)
        left = _together((survey.left, survey.splits) for survey in surveys)
        if position.planned is None and not left:
            return
        what = (
            f"{left} of {self._interval} were planned as they came, for a batch that is no longer in the logs"
            if position.planned is None
            else f"batch {LIVE}/{position.batch_id} was planned as data came, and is not committed"
        )
        raise IntervalError(
            f"pipeline {self._pipeline.name!r}: {what}. No run of an interval reads it. Run the pipeline with "
            "plan='live' until it finds nothing new; then plan it by intervals again."
        )

    def _check_taken(self, surveys: Sequence[IntervalSurvey]) -> None:
        """Check that no other interval has taken data of this one and has no batch of it. A run that left such data out
        would be green, and its rows in no table. Where this interval has taken data itself nobody but its run reads
        that: of two intervals that have data of each other neither would ever come first.

        :raises IntervalError: if one has, and plans none within ``taken_seconds``.
        """
        sources = self._planner.sources
        if any(self.key.lane in taken_by(sources.open(name)) for name in sources.names):
            return
        lanes = without_batch(self._checkpoint, {lane for survey in surveys for lane in survey.takers})
        end = time.monotonic() + self._taken_seconds
        while lanes and (left := end - time.monotonic()) > 0:
            time.sleep(min(_PAUSE_SECONDS, left))
            lanes = without_batch(self._checkpoint, lanes)
        for lane in lanes:
            raise IntervalError(
                f"pipeline {self._pipeline.name!r}: data of {self._interval} was taken for batch {BatchKey(lane, 0)}, "
                f"which is not in the logs, unless a run plans it right now. {read_only_by(lane)} This one goes on "
                "once that one is planned."
            )

    def _check_told(self, key: BatchKey) -> None:
        """Check that a skip leaves out no data that has taken the place of what the interval's batch has read: the run
        would be green, and the data in no table.

        :raises IntervalError: if it may, or if that cannot be asked now.
        """
        who = f"pipeline {self._pipeline.name!r}: batch {key} has read the data interval {self._interval}"
        try:
            why = self._planner.sources.why_untold(self._interval)
        except SourceError as away:
            # Nothing else of such a run asks a source: by its error alone the interval would seem to have no batch.
            raise IntervalError(
                f"{who}, and whether its source has other data by now cannot be asked: {away} Clear the task when it "
                f"can be. {AS_IT_IS}"
            ) from away
        if why is not None:
            raise IntervalError(
                f"{who}, and its source has changed since: {why} If other data is there now it is in no batch, and an "
                "interval has its batch once: read it by a pipeline with a checkpoint and a table of its own. "
                f"{AS_IT_IS}"
            )

    def _lane_batch(self, run: RunIdentity, surveys: Sequence[IntervalSurvey]) -> BatchKey | None:
        """The batch of the interval's lane; planned now if there is none and it would have data.

        :raises IntervalError: if it is too early to plan the batch.
        """
        position = self._planner.position()
        if position.latest is not None:
            self._planner.say_commit_again(position)
            return self.key
        self._planner.say_sink(plans=not run.was_cleared)
        early = self._too_early(surveys)
        if early is not None:
            raise IntervalError(
                f"pipeline {self._pipeline.name!r}: {early}, and what comes later would be left out. Put a "
                "NewDataSensor before the task, or run it later (a partitioned timetable: run_offset=-1)."
            )
        if not any(survey.unread for survey in surveys):
            return None
        self._planner.sources.check()
        self._planner.sink.check()
        if not self._planner.admits(self.key):
            log.info("The sink %s takes no batch: nothing to do", self._planner.sink.location())
            return None
        self._begin_record()
        self._planner.claim()
        self._planner.check_place(self.key)
        ranges = self._planner.sources.plan_interval(self._wanted(), self._held)
        if ranges.are_empty:
            return None  # another run took it between the two looks
        try:
            self._planner.write_entry(position, run, ranges)
        except ConcurrentPlanError as planned:
            if self._lane.offset_log.get(self.key.id) is None:
                # Taken back, since a command was there. A skip is green, and no run would come back for the interval.
                raise AttemptFencedError(f"{planned} Try again.") from planned
            # Planned by another run of the same interval: the ranges are the same, and one of the two gets the attempt.
            log.info("%s", planned)
        return self.key

    def _ready(self, keys: Sequence[BatchKey], run: RunIdentity, code: Code | None) -> list[PlannedBatch]:
        """The batches, with the requests for their replay on record if the run needs any. All batches are looked at
        before a replay is requested: a request that no run comes for would stay for ever.

        Execution replays the batches that a cleared run has planned itself. A batch that is to be replayed for another
        reason, a reprocessed partition or an overlap, is requested here, once for each run and clear.
        """
        ready = [self.execution(key).load(key) for key in keys]
        wanted = self._to_ask(ready, run)
        for planned in wanted:
            held = held_by_another(self._checkpoint, planned.key, run, no_engine)
            if held is not None:
                raise BatchInProgressError(f"{held}; it is not replayed once more.")
            self._check_again(planned)
        for planned in wanted:
            sources = self._sources_of(planned.key)
            ask_again(
                checkpoint=self._checkpoint,
                sources=sources,
                planned=planned,
                run=run,
                code=code,
                now_ms=self._clock_ms(),
            )
            log.info("Batch %s has data of %s: replaying it", planned.key, self._interval)
        return ready

    def _to_ask(self, batches: Sequence[PlannedBatch], run: RunIdentity) -> list[PlannedBatch]:
        """Those of which the run has to ask for a replay."""
        return [planned for planned in batches if planned.committed and self._must_ask(planned.key, run)]

    def _check_again(self, planned: PlannedBatch) -> None:
        """Check that the batch can be replayed; raises as the checks of a clear do."""
        commit = self._checkpoint.lane(planned.key.lane).commit_of(planned.key.id)
        progress = {} if commit is None else commit.progress
        check_replay(self._checkpoint, planned.key, progress, sink=self._planner.sink)
        check_place_again(self._checkpoint, self._planner.sink, planned.key)
        is_own = planned.key.lane == self.key.lane
        way = AS_IT_IS if is_own else "With on_overlap='skip' this run leaves it so, and reads what no batch has read."
        check_replaceable(self._checkpoint, self._planner.sink, planned, way=way)
        check_replayable(self._sources_of(planned.key), planned)

    def _must_ask(self, key: BatchKey, run: RunIdentity) -> bool:
        if any(run.is_of(by) for by in runs_of(self._checkpoint.lane(key.lane), key.id)):
            return False
        asked = [request.run for request in self._checkpoint.replays.all(key)]
        return not any(
            by is not None and run.relation_to(by) in (Relation.SAME, Relation.EARLIER) for by in asked
        )  # fmt: skip

    def _sources_of(self, key: BatchKey) -> OpenedSources:
        return OpenedSources(
            self._pipeline.sources, checkpoint=self._checkpoint, lane=key.lane, clock_ms=self._clock_ms
        )  # fmt: skip


def _together(counted: Iterable[tuple[int, str]]) -> str:
    """How much data sources have, counted in the splits of each, in words; empty if there is none."""
    counts: Counter[str] = Counter()
    for count, splits in counted:
        counts[splits] += count
    return " and ".join(f"{count} {splits}" for splits, count in counts.items() if count)
