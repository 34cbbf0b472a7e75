"""Mutations of data intervals: backfills, lookback, and what no run has read."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

BACKFILL = "tests/execution/test_backfill.py"
INTERVALS = "tests/execution/test_interval_mode.py"
LOOKBACK = "tests/execution/test_lookback.py"
UNREAD = "tests/execution/test_unread.py"
DATA_INTERVAL = "tests/airflow_face/test_data_interval.py"

MUTATIONS = [
    Mutation(
        name="a clear of before the pipeline read what is new is lost",
        why="a green square, and the batch of its interval is as the code of then has made it",
        file="task_context/data_interval.py",
        old="        interval = planned_interval(checkpoint, run)\n",
        new="        interval = None\n",
        tests=(DATA_INTERVAL,),
    ),
    Mutation(
        name="a backfill over a run of a drain leaves what its later slots have made",
        why="a green square, and the code that the user asked for was not run over these batches",
        file="operators/drain.py",
        old="work is not None and not own_of_interval(open_checkpoint(self.pipeline), identity_of(context), work.key)",
        new="work is not None",
        tests=(DATA_INTERVAL,),
    ),
    Mutation(
        name="the sensor of a run whose schedule was changed waits for the interval of now",
        why="a clear stands still until the end of an interval that has nothing to do with its batch",
        file="triggers/new_data.py",
        old="            interval = as_planned(checkpoint, interval, run)",
        new="            interval = interval",
        tests=("tests/airflow_face/test_data_interval.py",),
    ),
    Mutation(
        name="a run whose schedule was changed gets the interval of now",
        why="its batch waits for ever, and no other lane reads what that has taken",
        file="task_context/data_interval.py",
        old="as_planned(checkpoint, interval_of(context), run)",
        new="interval_of(context)",
        tests=("tests/airflow_face/test_data_interval.py",),
    ),
    Mutation(
        name="what the live lane has left is skipped by intervals",
        why="a skip is green, and its rows are in no table",
        file="execution/backfill.py",
        old="            self._check_live(surveys)\n",
        new="            pass\n",
        tests=(INTERVALS,),
    ),
    Mutation(
        name="a backfill that has asked for a replay skips it",
        why="the request waits for ever, and retention and clean_source with it",
        file="execution/backfill.py",
        old="            if asked:\n",
        new="            if False:\n",
        tests=(BACKFILL,),
    ),
    Mutation(
        name="all that was not read is late",
        why="a later run takes an earlier one's files, which is then skipped in green",
        file="execution/intervals.py",
        old="    spans = [span for span in map(span_of, runs.lanes()) if span is not None]\n",
        new="    spans = [(start, interval.start_ms)]\n",
        tests=(LOOKBACK,),
    ),
    Mutation(
        name="an interval that had no data had no run",
        why="what comes late for it is read by nobody",
        file="execution/backfill.py",
        old="            self._checkpoint.intervals.had(self.key.lane)\n",
        new="            pass\n",
        tests=(LOOKBACK,),
    ),
    Mutation(
        name="what the runs of intervals have passed is not told",
        why="rows that nobody reads, with every square green",
        file="execution/backfill.py",
        old="            self._tell_unread(surveys, run)\n",
        new="            pass\n",
        tests=(UNREAD,),
    ),
    Mutation(
        name="check passes over what no run of an interval has read",
        why="rows that nobody reads, and check finds nothing wrong",
        file="cli/check.py",
        old=" + find_unread(checkpoint)\n",
        new="\n",
        tests=(UNREAD,),
    ),
    Mutation(
        name="only some of what the runs of intervals have passed is told",
        why="a pause is named in part, and its rest is read by nobody",
        file="sources/file/window.py",
        old="            elif ms < interval.start_ms:\n",
        new="            elif ms < interval.start_ms and not passed:\n",
        tests=(UNREAD, "tests/simulator/test_simulator.py"),
    ),
    Mutation(
        name="check takes what a live lane will read for passed",
        why="a healthy pipeline has findings for ever",
        file="execution/unread.py",
        old='    if arguments.get("plan") != INTERVAL:\n',
        new="    if False:\n",
        tests=(UNREAD,),
    ),
    Mutation(
        name="the backfill that is named begins at the first file",
        why="it makes no run for the interval that this lies in",
        file="execution/unread.py",
        old="    start = max(unread.first_ms - length_ms, min(unread.first_ms, 0))\n",
        new="    start = unread.first_ms\n",
        tests=(DATA_INTERVAL,),
    ),
    Mutation(
        name="lookback leaves a stretch to runs that Airflow never makes",
        why="what lies where the schedule was changed is read by nobody",
        file="execution/intervals.py",
        old="    if none_on_its_way:\n",
        new="    if False:\n",
        tests=(DATA_INTERVAL,),
    ),
    Mutation(
        name="lookback takes what another run is on its way to",
        why="that run is skipped in green, and its rows are in another's batch",
        file="task_context/run_context.py",
        old='states=["queued", "running"]) > 1)',
        new='states=["queued", "running"]) > 2)',
        tests=(DATA_INTERVAL,),
    ),
    Mutation(
        name="lookback of a backfill takes what Airflow has yet to make a run for",
        why="a scheduled run that comes later is skipped in green, and its rows are in another's batch",
        file="task_context/data_interval.py",
        old="        in_order=is_scheduled(context),\n",
        new="        in_order=True,\n",
        tests=(DATA_INTERVAL,),
    ),
    Mutation(
        name="runs of one partition do not know each other",
        why="reprocessing a partition replays nothing",
        file="execution/own_batches.py",
        old="    if run.partition_date is None or by.partition_date != run.partition_date:",
        new="    if True:",
        tests=(BACKFILL,),
    ),
    Mutation(
        name="what was set aside is passed over by an overlap, though a replay has published it",
        why="its rows stay as they were made while the interval's others are made anew",
        file="execution/backfill.py",
        old="(commit.set_aside and not self._checkpoint.replays.is_answered(key))",
        new="commit.set_aside",
        tests=(BACKFILL,),
    ),
    Mutation(
        name="each try asks for the replays of an overlap",
        why="a try that slept through a clear asks again for what was asked for after it",
        file="execution/backfill.py",
        old="        asked = [request.run for request in self._checkpoint.replays.all(key)]\n",
        new="        asked: list[RunIdentity] = []\n",
        tests=(BACKFILL,),
    ),
    Mutation(
        name="an interval is planned before it is over",
        why="what lands in its rest is read by no run",
        file="execution/backfill.py",
        old="        if early is not None:\n            raise",
        new="        if False:\n            raise",
        tests=(INTERVALS,),
    ),
]
