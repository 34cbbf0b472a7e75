"""Mutations of the Kafka source."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

LANES = "tests/sources/test_kafka_intervals.py"
PIECES = "tests/sources/test_kafka_pieces.py"
DEFINITION = "tests/sources/test_kafka_definition.py"

MUTATIONS = [
    Mutation(
        name="the live lane claims nothing of what it reads",
        why="an interval that is planned meanwhile takes it once more",
        file="sources/kafka/taken.py",
        old="            if not own - found.live or self._put(replace(found, live=found.live | own)):\n",
        new="            if True:\n",
        tests=(LANES,),
    ),
    Mutation(
        name="an interval takes what the live lane has by its log alone",
        why="batches from before the first interval are read twice",
        file="sources/kafka/taken.py",
        old="            free = wanted - found.live - held - found.intervals\n",
        new="            free = wanted - found.live - found.intervals\n",
        tests=(LANES,),
    ),
    Mutation(
        name="what a lane took that died is written down by nobody",
        why="its interval finds nothing, and no other lane may have it",
        file="sources/kafka/taken.py",
        old="                self._record(*found.newest)\n",
        new="                pass\n",
        tests=(LANES,),
    ),
    Mutation(
        name="a limit is gone beyond where partitions are many",
        why="a batch is larger than it may be",
        file="sources/kafka/share.py",
        old="    over = sum(shares.values()) - most\n",
        new="    over = 0\n",
        tests=(PIECES,),
    ),
    Mutation(
        name="a checkpoint chooses whom its source speaks to",
        why="who can write it has a process call any server",
        file="sources/kafka/__init__.py",
        old="        return set() if self.bootstrap_servers is None else {self.bootstrap_servers}\n",
        new="        return set()\n",
        tests=(DEFINITION,),
    ),
]
