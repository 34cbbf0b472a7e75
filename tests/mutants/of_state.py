"""Mutations of batches that keep state."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

BATCHES = "tests/state/test_batches.py"
FILES = "tests/state/test_parse.py"
KAFKA = "tests/state/test_kafka.py"
COPIED = "tests/state/test_copied_rows.py"
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
        name="files of a query are removed as if its snapshots were ours",
        why="a replay of the first batch after it finds no state",
        file="execution/state_files.py",
        old="        if self.base < self.since and batch_id < self.since:\n",
        new="        if False:\n",
        tests=(EXCHANGE,),
    ),
    Mutation(
        name="a topic's stream is not told where its first batch begins",
        why="Spark begins elsewhere: with what is no part of the range, or behind what is",
        file="sources/kafka/open.py",
        old="            log={} if first is None else entry_of_beginning(first),\n",
        new="            log={},\n",
        tests=(KAFKA,),
    ),
    Mutation(
        name="a topic is streamed over a piece that an interval has taken",
        why="its records are in two batches",
        file="sources/kafka/open.py",
        old="        if len(layers) > 1:\n",
        new="        if False:\n",
        tests=(KAFKA,),
    ),
    Mutation(
        name="rows of a stream that is used twice are counted",
        why="a replay by other code is refused, as if the source had lost rows",
        file="runtime/streaming.py",
        old="None if uses.count(name) > names.count(name) else max(found, default=0)",
        new="max(found, default=0)",
        tests=(KAFKA,),
    ),
    Mutation(
        name="a copy does not tell where it has ended",
        why="a batch with a late end is not published",
        file="runtime/copied_rows.py",
        old="        told={**found.told, **ended},\n",
        new="        told=found.told,\n",
        tests=(COPIED,),
    ),
    Mutation(
        name="archived files are streamed from where they were",
        why="a replay of a batch finds none of them",
        file="sources/file/open.py",
        old="        if self._source.clean_source is not None or is_object(self._source.path):\n",
        new="        if is_object(self._source.path):\n",
        tests=(FILES,),
    ),
    Mutation(
        name="copies of a killed attempt stay",
        why="rows are kept for nobody until a later batch is committed, if ever one is",
        file="execution/ending.py",
        old="            drop_own_folder(self._checkpoint, attempt)\n",
        new="",
        tests=(COPIED,),
    ),
    Mutation(
        name="the janitor leaves the copies of a dead attempt",
        why="they fill the checkpoint's disk while the pipeline does not run",
        file="upkeep/janitor.py",
        old="        drop_own_folder(self._checkpoint, attempt)\n",
        new="",
        tests=("tests/execution/test_janitor.py",),
    ),
    Mutation(
        name="a source without a stream is not refused",
        why="its batches fail in Spark, one by one",
        file="pipeline.py",
        old="            if (why := source.refuses_streams) is not None:\n",
        new="            if (why := source.refuses_streams) is not None and False:\n",
        tests=(FILES,),
    ),
]
