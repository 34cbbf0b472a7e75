"""Mutations of the watermark that a batch which keeps state pins."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

BESIDE = "tests/state/test_replay_beside_the_next.py"

MUTATIONS = [
    Mutation(
        name="the batch behind a replay pins the watermark of the attempt that was replaced",
        why="behind a time in the far future that was mended all rows are late for good, in green",
        file="execution/standing_state.py",
        old='        next_watermark_ms=int(state["nextWatermarkMs"]),\n',
        new="",
        tests=(BESIDE,),
    ),
    Mutation(
        name="whether a batch without data follows a replay is told by the attempt that was replaced",
        why="rows that the watermark has let go of are in no table until there is new data",
        file="execution/standing_state.py",
        old='        requires_another_batch=bool(result.get("requiresAnotherBatch", False)),\n',
        new="",
        tests=(BESIDE,),
    ),
    Mutation(
        name="the sensor looks at the attempt that a replay has replaced",
        why="it does not fire for the batch without data that the replay asks for",
        file="execution/fire.py",
        old="        position = planner.standing(position, by_record=True)\n",
        new="        planner.standing(position, by_record=True)\n",
        tests=(BESIDE,),
    ),
    Mutation(
        name="the sensor asks the table what a replay has made of the batch before",
        why="a sensor where the sink's library is not fails until the next batch is made, which waits for it",
        file="execution/fire.py",
        old="        position = planner.standing(position, by_record=True)\n",
        new="        position = planner.standing(position)\n",
        tests=(BESIDE,),
    ),
    Mutation(
        name="the sensor goes by the answer before where a replay has died without one",
        why="it fires again and again for a batch that no plan makes, or not for one that is to be made",
        file="execution/standing_state.py",
        old="    asked = [sink] if not by_record or _may_be_newer(checkpoint, key, commit) else []\n",
        new="    asked = [] if by_record else [sink]\n",
        tests=(BESIDE,),
    ),
    Mutation(
        name="the sensor goes by the answer before where the clear of a replay that has died is withdrawn",
        why="it fires again and again for a batch that no plan makes, or not for one that is to be made",
        file="execution/standing_state.py",
        old="if not by_record or _may_be_newer(checkpoint, key, commit) else",
        new="if not by_record or checkpoint.replays.pending(key) else",
        tests=(BESIDE,),
    ),
    Mutation(
        name="the sensor insists on the table behind a replay that failed and that nobody waits for",
        why="where the sink's library is not, no sensor ever fires again",
        file="execution/standing_state.py",
        old="        if not by_record:\n            raise\n",
        new="        raise\n",
        tests=(BESIDE,),
    ),
    Mutation(
        name="the sensor takes an attempt that only ends others for one that may have published",
        why="where the sink's library is not, each look waits for a table that it need not ask",
        file="execution/standing_state.py",
        old="    return any(one is None or not one.is_fence for one in newer)\n",
        new="    return bool(newer)\n",
        tests=(BESIDE,),
    ),
    Mutation(
        name="a plan that is older than the state runs by its own watermark",
        why="a replay that replaced the state in the last moment is followed by rows that are taken for late",
        file="execution/stateful.py",
        old="        _check_watermark(planned, before, checkpoint, sink)\n",
        new="",
        tests=(BESIDE,),
    ),
    Mutation(
        name="a batch by the watermark of an attempt that was replaced is not found",
        why="what an older version has dropped as late stays away, and check is clean",
        file="upkeep/table_check.py",
        old="    findings += check_watermarks(checkpoint, recorded) if everything else []\n",
        new="",
        tests=(BESIDE,),
    ),
    Mutation(
        name="the batch before is shown to Spark with the time of the batch",
        why="what a processor forgets stays in its state for good, by Spark 4.2",
        file="runtime/streaming_folder.py",
        old="        late = _line(streaming.late_ms, 0, conf)\n",
        new="        late = _line(streaming.late_ms, timestamp_ms, conf)\n",
        tests=("tests/spark_exchange/test_state_elsewhere.py",),
    ),
]
