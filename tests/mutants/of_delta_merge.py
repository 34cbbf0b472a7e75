"""Mutations of a Delta table into which changes are merged."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

MERGE = ("tests/sinks/test_lake_merge.py",)

REFUSED = ("tests/sinks/test_lake_merge_refused.py",)
PUT_BACK = ("tests/sinks/test_delta_merge_restored.py",)
VERSIONS = ("tests/sinks/test_lake_versions.py",)

MUTATIONS = [
    Mutation(
        name="a sink of rows takes a batch out of merged changes",
        why="the batch counts as taken out, and its rows stay in the table for ever",
        file="sinks/delta/table.py",
        old="                self._check_kept(snapshot)\n",
        new="",
        tests=REFUSED,
    ),
    Mutation(
        name="a deletion is forgotten once its row is gone",
        why="a late change brings back what a newer one has deleted",
        file="sinks/merged/judging.py",
        old="            put=moved.put,\n",
        new="            put=moved.rows(schema),\n",
        tests=MERGE,
    ),
    Mutation(
        name="a publish keeps to the record of before, whatever others have committed",
        why="what the other has changed meanwhile is lost",
        file="sinks/delta/merged/opened.py",
        old="        return now is not None and (snapshot is None or now.version > snapshot.version)\n",
        new="        return False\n",
        tests=MERGE,
    ),
    Mutation(
        name="a key whose newest change goes out gets no other one",
        why="a rewind takes rows away that other batches have brought",
        file="sinks/merged/judging.py",
        old="        if lost.num_rows:\n",
        new="        if False:\n",
        tests=MERGE,
    ),
    Mutation(
        name="the changes that went out are on no record while they are removed",
        why="who dies there leaves files that nobody finds",
        file="sinks/delta/merged/in_folder.py",
        old="        self._places.mark(self._place_of(found))\n",
        new="        pass\n",
        tests=MERGE,
    ),
    Mutation(
        name="newest changes that are about to be committed are swept as old ones",
        why="the next publish finds no record, and none goes on",
        file="sinks/merged/newest.py",
        old="int(one[1]) <= _version(own) and one[0] not in named",
        new="one[0] not in named",
        tests=MERGE,
    ),
    Mutation(
        name="changes that go out of a bucket are on no record while they are removed",
        why="who dies there leaves objects that nobody finds",
        file="sinks/delta/merged/in_bucket.py",
        old="        self._stages.give_up(self._written_by(found.manifest))\n",
        new="        pass\n",
        tests=MERGE,
    ),
    Mutation(
        name="changes that go out of a bucket may be published until they are removed",
        why="who has slept brings a batch back in whose changes are gone",
        file="sinks/delta/merged/in_bucket.py",
        old="        self._stages.give_up(self._written_by(found.manifest))\n",
        new="        self._stages.begin(self._written_by(found.manifest))\n",
        tests=MERGE,
    ),
    Mutation(
        name="an object that is gone while it is read is an error",
        why="a publish fails whenever another one beside it replaces the newest changes",
        file="sinks/delta/objects/home.py",
        old="            raise FileNotFoundError(_gone(path)) from None\n",
        new="            raise RuntimeError(_gone(path)) from None\n",
        tests=MERGE,
    ),
    Mutation(
        name="a RESTORE to before the newest changes counts as one that took nothing of them back",
        why="keys keep rows of before, and changes of them are dropped, in green",
        file="sinks/delta/merged/put_back.py",
        old="        if target is None or not since <= target < last:\n",
        new="        if target is None or target >= last:\n",
        tests=PUT_BACK,
    ),
    Mutation(
        name="of two RESTOREs only the later one is taken back",
        why="the way on that is named brings back the rows of the first one",
        file="sinks/delta/merged/put_back.py",
        old="good = min(away) - 1",
        new="good = max(away) - 1",
        tests=PUT_BACK,
    ),
    Mutation(
        name="an overwrite of a part counts as one of the whole table",
        why="rows of others that the table may have stop its publishes",
        file="sinks/delta/merged/put_back.py",
        old=' and not parameters.get("predicate")',
        new="",
        tests=PUT_BACK,
    ),
    Mutation(
        name="a record of a try that was outrun counts as the one that was committed",
        why="what others did before the newest changes is taken back, and the newest changes with it",
        file="sinks/merged/newest.py",
        old="        return found[-1]\n",
        new="        return found[0]\n",
        tests=PUT_BACK,
    ),
    Mutation(
        name="a copy of the newest record under a name of a later version counts",
        why="what was put back before that version is noticed by nobody",
        file="sinks/merged/newest.py",
        old=" if version <= up_to]",
        new="]",
        tests=PUT_BACK,
    ),
    Mutation(
        name="a RESTORE that leads to its own version is followed",
        why="each plan, publish and check hangs for ever",
        file="sinks/delta/merged/put_back.py",
        old="not since <= target < last:",
        new="not since <= target:",
        tests=PUT_BACK,
    ),
    Mutation(
        name="newest changes that are gone are missed when Spark has run",
        why="a rewind is named before, which leads nowhere",
        file="sinks/delta/merged/opened.py",
        old="            if self._is_outdated(snapshot):\n                return  #",
        new="            if True:\n                return  #",
        tests=PUT_BACK,
    ),
    Mutation(
        name="a change is held against that of another key",
        why="the first version of a key is missing where the last one of the key before is like it",
        file="sinks/merged/versions.py",
        old="held = held if goes_on[at] else None",
        new="held = held if at else None",
        tests=VERSIONS,
    ),
    Mutation(
        name="a batch keeps one change of each key of a table of files, where all versions are to be seen",
        why="what a batch has passed through is in no version",
        file="sinks/merged/order.py",
        old="for names in (merge.distinct_by, ranked)",
        new="for names in (merge.keys, ranked)",
        tests=VERSIONS,
    ),
    Mutation(
        name="a table of files that has the newest states takes versions of which most changes were never kept",
        why="the history of its keys has gaps, in green",
        file="sinks/merged/checks.py",
        old="if list(before.bounds) != list(merge.bounds):",
        new="if False:",
        tests=VERSIONS,
    ),
]
