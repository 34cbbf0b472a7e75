"""Mutations of the source that reads tunnels of Tablestore."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

TUNNELS = "tests/sources/test_tablestore.py"
ANSWERS = "tests/sources/test_tablestore_answers.py"

MUTATIONS = [
    Mutation(
        name="a range of a channel begins where the tunnel says that its reader is by now",
        why="the batch that first read a channel cannot be replayed once it is committed",
        file="sources/channels/open.py",
        old='"at": from_its_origin(first.get(channel, NEW), last[channel])',
        new='"at": first.get(channel, NEW)',
        tests=(TUNNELS,),
    ),
    Mutation(
        name="after a rewind a channel begins where the tunnel says that its reader is by now",
        why="what was taken out of the table is not read again",
        file="sources/channels/open.py",
        old="**known[name].at}",
        new='"origin": self._server.origin(name)[0]}',
        tests=(TUNNELS,),
    ),
    Mutation(
        name="after a rewind a channel is read beside its parents",
        why="newer changes of a key come before older ones",
        file="sources/channels/open.py",
        old="eligible(start, {**listed, **parents})",
        new="eligible(start, listed)",
        tests=(TUNNELS,),
    ),
    Mutation(
        name="a channel that no plan has read waits for nobody after a rewind",
        why="newer changes of a key come before older ones",
        file="sources/channels/open.py",
        old="behind[name] = (*ended, *ended_there)",
        new="behind[name] = (*ended,)",
        tests=(TUNNELS,),
    ),
    Mutation(
        name="nobody notices that the tunnel was not told of an end",
        why="after a task that died behind its commit the children are never opened, and their rows never read",
        file="sources/channels/open.py",
        old="            or self._is_untold(start, listed)\n",
        new="",
        tests=(TUNNELS,),
    ),
    Mutation(
        name="what of an answer did not go into a batch is left behind",
        why="its rows are lost",
        file="runtime/tablestore.py",
        old="next=answer.next if number == len(rows) else None",
        new="next=answer.next",
        tests=(TUNNELS,),
    ),
    Mutation(
        name="rows of an answer that were read before are read again",
        why="each batch begins with the last rows of the one before",
        file="runtime/tablestore.py",
        old="                rows = [one for one in rows if here is None or one[0] > here.stamp]\n",
        new="",
        tests=(TUNNELS,),
    ),
    Mutation(
        name="what the log of a table has lost is not missed",
        why="rows are lost, and nobody knows",
        file="runtime/tablestore.py",
        old="                gap = checked and not is_there and may_lack(",
        new="                gap = False and may_lack(",
        tests=(TUNNELS,),
    ),
    Mutation(
        name="a channel that somebody else has read is empty",
        why="its rows are lost, and nobody knows",
        file="runtime/tablestore.py",
        old="yield Page(seen=0, at_tip=True, ended=True, gap=True)",
        new="yield Page(seen=0, at_tip=True, ended=True)",
        tests=(TUNNELS,),
    ),
    Mutation(
        name="a channel that somebody else has read a part of begins behind that part",
        why="what lies before it is in no batch, and nobody knows",
        file="sources/tablestore/server.py",
        old="number > 0 and not counts_none(token)",
        new="False",
        tests=(TUNNELS,),
    ),
    Mutation(
        name="a channel that waits for its parents is read",
        why="newer changes of a key come before older ones, or the service refuses",
        file="sources/tablestore/server.py",
        old="            if status != WAIT\n",
        new="",
        tests=(TUNNELS,),
    ),
    Mutation(
        name="an answer that was cut off before its token is a channel's last one",
        why="all that comes after it is lost",
        file="runtime/tunnel_calls.py",
        old="lacking = [number for number in needs if not answer.has(number)]",
        new="lacking = list[int]()",
        tests=(ANSWERS,),
    ),
    Mutation(
        name="nobody looks whether an answer is whole",
        why="channels that a listing has lost count as gone, and are never read again",
        file="runtime/tunnel_calls.py",
        old='if answer.headers.get("x-ots-contentmd5", _digest(data)) != _digest(data):',
        new="if False:",
        tests=(ANSWERS,),
    ),
    Mutation(
        name="base data is read as if it were a log",
        why="a replay puts other rows in the place of what was there",
        file="sources/tablestore/server.py",
        old='        if state.kind != "Stream":\n',
        new="        if False:\n",
        tests=(TUNNELS,),
    ),
    Mutation(
        name="a body goes unsigned",
        why="whoever stands between could ask for something else in its place",
        file="runtime/tunnel_calls.py",
        old="hashlib.md5(body, usedforsecurity=False)",
        new="hashlib.md5(usedforsecurity=False)",
        tests=(TUNNELS,),
    ),
    Mutation(
        name="a channel that a restored checkpoint has not read begins where it began",
        why="the tunnel tells that no more, and a rewind takes the only copy of what was read out of the table",
        file="sources/channels/gone.py",
        old="        if not is_known and (",
        new="        if not is_known and False and (",
        tests=(ANSWERS,),
    ),
]
