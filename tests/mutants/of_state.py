"""Mutations of batches that keep state."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

BATCHES = "tests/state/test_batches.py"
FILES = "tests/state/test_parse.py"
EXCHANGE = "tests/spark_exchange/test_state_exchange.py"

MUTATIONS = [
    Mutation(
        name="a batch goes on from the state that was committed first",
        why="after a replay of the batch before it goes on from the attempt whose output was replaced",
        file="execution/stateful.py",
        old="    if published is not None:\n        return published.result\n",
        new="",
        tests=(BATCHES,),
    ),
    Mutation(
        name="files of losers are kept, those of winners removed",
        why="the next batch does not find the state that it goes on from",
        file="execution/state_files.py",
        old="id in self.ids[batch_id])",
        new="id not in self.ids[batch_id])",
        tests=(FILES,),
    ),
    Mutation(
        name="an older batch that kept state is replayed",
        why="its output contradicts the batches that have gone on from it",
        file="execution/replay.py",
        old="        check_replay(checkpoint, key, commit.progress)\n",
        new="",
        tests=(BATCHES,),
    ),
    Mutation(
        name="state that names its own folder is kept",
        why="batch 0 is in the table, and batch 1 fails for ever",
        file="runtime/streaming.py",
        old="    _check_operators(result)\n",
        new="",
        tests=(BATCHES,),
    ),
    Mutation(
        name="the watermark does not go on",
        why="rows are never final, and late ones are counted twice",
        file="execution/stateful.py",
        old='    return planned.entry.watermark_ms if state is None else int(state["nextWatermarkMs"])\n',
        new="    return planned.entry.watermark_ms\n",
        tests=(BATCHES,),
    ),
    Mutation(
        name="a query goes on from the state that was committed first",
        why="after a replay it goes on from the attempt whose output was replaced",
        file="upkeep/commands/exchange_state.py",
        old="state_of(published_result(checkpoint, key, sinks), where",
        new="state_of(commit.progress or published_result(checkpoint, key, sinks), where",
        tests=(EXCHANGE,),
    ),
    Mutation(
        name="a query is not told the settings of the state",
        why="it looks for keys in other partitions",
        file="upkeep/commands/exchange_state.py",
        old='conf={**entry.conf, **state["conf"]}, ',
        new="",
        tests=(EXCHANGE,),
    ),
    Mutation(
        name="a batch has another plan in an export",
        why="the table takes it for another checkpoint's when it comes back",
        file="upkeep/commands/exchange_state.py",
        old=", stands_for=entry.stands_for or digest_of(data)",
        new="",
        tests=(EXCHANGE,),
    ),
    Mutation(
        name="state of any provider is imported",
        why="two attempts of one batch overwrite its files",
        file="execution/query_state.py",
        old=" or entry.conf.get(PROVIDER) != ROCKSDB",
        new="",
        tests=(EXCHANGE,),
    ),
    Mutation(
        name="state is taken over whatever its settings say",
        why="Spark loads a class of a stranger's, or each run fails",
        file="execution/stateful.py",
        old='    check_state_conf(state["conf"], where=where)\n',
        new="",
        tests=(FILES,),
    ),
    Mutation(
        name="an import does not look at the state",
        why="it is done, and its first run fails for ever",
        file="upkeep/commands/exchange_state.py",
        old='    if state_of(told, where=f"batch {key} of {origin.location}") is None:\n',
        new='    if told.get("state") is None:\n',
        tests=("tests/execution/test_exchange.py",),
    ),
    Mutation(
        name="files of a query are removed as if its snapshots were ours",
        why="a replay of the first batch after it finds no state",
        file="execution/state_files.py",
        old="        if self.base < self.since and batch_id < self.since:\n",
        new="        if False:\n",
        tests=(EXCHANGE,),
    ),
    Mutation(
        name="a batch that was handed over with other settings is another plan",
        why="the importing pipeline commits it again and again, in green, and reads nothing new",
        file="checkpoint/by_hand.py",
        old="plan not in (digest_of(data), entry.stands_for)",
        new="plan != digest_of(data)",
        tests=(EXCHANGE,),
    ),
    Mutation(
        name="an export tells the state of the attempt that was replaced",
        why="whoever imports it goes on from rows that are in no table any more",
        file="upkeep/commands/exchange_state.py",
        old='        progress={**commit.progress, "state": state},\n',
        new="",
        tests=(EXCHANGE,),
    ),
    Mutation(
        name="behind a replay a new table goes on from the state of before",
        why="its counts contradict the table that the replay has corrected",
        file="execution/stateful.py",
        old='    if answer is not None and answer.get("progress"):\n',
        new="    if False:\n",
        tests=(EXCHANGE,),
    ),
    Mutation(
        name="a pipeline that is not stateful any more goes on",
        why="its batches aggregate within themselves alone, in green",
        file="execution/stateful.py",
        old="    if pipeline.stateful or commit is None:\n",
        new="    if True:\n",
        tests=(BATCHES,),
    ),
    Mutation(
        name="state goes on in another output mode",
        why="rows of open windows are in no table, or twice, in green",
        file="execution/stateful.py",
        old="        _check_output_mode(pipeline, before, checkpoint)\n",
        new="",
        tests=(BATCHES,),
    ),
]
