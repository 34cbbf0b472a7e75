"""Mutations of the Kafka source."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

LANES = "tests/sources/test_kafka_intervals.py"
PIECES = "tests/sources/test_kafka_pieces.py"
DEFINITION = "tests/sources/test_kafka_definition.py"
PLANNING = "tests/sources/test_kafka_planning.py"
BY_HAND = "tests/sources/test_kafka_by_hand.py"
MADE_AGAIN = "tests/sources/test_kafka_made_again.py"

MUTATIONS = [
    Mutation(
        name="a planned batch that cannot be read is in the way and nobody says so",
        why="the commands that are named are refused, and nothing names the rewind",
        file="execution/job_of.py",
        old="        if attempt.request is not None:\n            raise ",
        new="        if attempt.request is None:\n            raise ",
        tests=(MADE_AGAIN,),
    ),
    Mutation(
        name="check does not look whether the planned batch can be read",
        why="nothing is wrong, and the pipeline stands still",
        file="upkeep/source_check.py",
        old="            if why is not None:\n",
        new="            if why is not None and start is None:\n",
        tests=(MADE_AGAIN,),
    ),
    Mutation(
        name="check does not ask whether a topic was made again",
        why="nothing is wrong, and nothing is planned",
        file="sources/kafka/topics.py",
        old="for topic in found.values() if not self.is_as_it_was(topic)), None)",
        new="for topic in found.values() if topic.name == topic.id), None)",
        tests=(MADE_AGAIN,),
    ),
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
    Mutation(
        name="an interval of a topic ends where an open transaction begins",
        why="what the transaction commits is in no batch, and every square is green",
        file="sources/kafka/window.py",
        old="        held = self.times.open_before(self.interval.end_ms)\n",
        new="        held: list[Partition] = []\n",
        tests=(LANES,),
    ),
    Mutation(
        name="a record that came after its interval's run is told by nobody",
        why="it is in no batch, and no lookback is named that would take it",
        file="sources/kafka/window.py",
        old="        left -= self.times.earlier(begins)\n",
        new="        left -= self.times.earlier(self.interval.start_ms)\n",
        tests=(LANES,),
    ),
    Mutation(
        name="an interval goes on without what retention has removed",
        why="records are gone before they were read, in green, whatever on_data_loss says",
        file="sources/kafka/window.py",
        old="        may_be = self.times.all_since(self.interval.start_ms)\n",
        new="        may_be = dict[Partition, int]()\n",
        tests=(LANES,),
    ),
    Mutation(
        name="a position that is named forgets what is not selected today",
        why="named again it begins where it began at first, and is read twice",
        file="sources/kafka/by_hand.py",
        old="in {**position, **here}.items()",
        new="in here.items()",
        tests=(BY_HAND,),
    ),
    Mutation(
        name="a position without a topic that is gone lies before one with it",
        why="the command is refused, and a pattern source with a deleted topic stands still for ever",
        file="sources/kafka/by_hand.py",
        old="        if one and two and lone and lone",
        new="        if one and two and not lone and lone",
        tests=(BY_HAND,),
    ),
    Mutation(
        name="a sensor does not look whether a topic of the pattern is gone",
        why="it fires, and each plan fails",
        file="sources/kafka/open.py",
        old="        self._check_gone_topics(known)\n        return any(",
        new="        return any(",
        tests=(BY_HAND,),
    ),
    Mutation(
        name="a topic that was away for a moment is a gap",
        why="all that the batch was to read of it is in none, for good",
        file="sources/kafka/open.py",
        old="        if there := self._named(lambda: self._available(left_out)):\n",
        new="        if there := left_out - left_out:\n",
        tests=(PLANNING,),
    ),
    Mutation(
        name="a topic without an id is one that was never made again",
        why="records of a topic that was made again are passed over, in green, where brokers have no ids",
        file="kafka/cluster.py",
        old="                if str(told.topic_id) == _NO_ID:\n",
        new="                if str(told.topic_id) == name:\n",
        tests=(PLANNING,),
    ),
    Mutation(
        name="a topic begins now where it is to begin later",
        why="records of before the moment are read",
        file="sources/kafka/open.py",
        old="        if known is None and self._begins_later():\n",
        new="        if known is None and not self._lane:\n",
        tests=(PLANNING,),
    ),
    Mutation(
        name="a topic that is gone is in a consumer group's way",
        why="the group stays where it was behind each batch, and each log has a warning",
        file="sources/kafka/open.py",
        old="for one, at in position.items() if one[0] in there})\n",
        new="for one, at in position.items() if there})\n",
        tests=(PLANNING,),
    ),
    Mutation(
        name="an interval is short of what is gone behind a later one",
        why="it is refused in vain, or its batch tells of the gap, and none where the records belong",
        file="sources/kafka/window.py",
        old="ends.get(one) == piece[0]}:\n",
        new="ends.get(one) == piece[1]}:\n",
        tests=(LANES,),
    ),
    Mutation(
        name="what was late for a later interval is taken for its own",
        why="an interval between the two loses records, in green",
        file="sources/kafka/window.py",
        old="for one, piece in behind.items() if one in since)",
        new="for one, piece in behind.items() if one in since or behind)",
        tests=(LANES,),
    ),
]
