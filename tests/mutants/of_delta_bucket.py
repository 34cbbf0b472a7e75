"""Mutations of the Delta table in a bucket."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

TABLE = "tests/sinks/test_delta_bucket.py"
REFUSED = "tests/sinks/test_delta_bucket_refused.py"

MUTATIONS = [
    Mutation(
        name="a copy of a Delta table in a bucket is another table",
        why="it gets new batches on top, and nobody misses what it lacks",
        file="sinks/delta/objects/__init__.py",
        old="            batch.tables.put_at(self.location(), snapshot.table_id)\n",
        new="            pass\n",
        tests=(TABLE,),
    ),
    Mutation(
        name="the environment's endpoint wins over that of a connection of a checkpoint",
        why="its keys go to another service, and batches are in two checkpoints",
        file="stores/object_store/credentials.py",
        old='options["aws_endpoint_url_s3"] = ',
        new='options["endpoint"] = ',
        tests=(REFUSED,),
    ),
    Mutation(
        name="the environment's endpoint wins over that of a connection of a Delta table",
        why="versions of its log are in one service, and its files in another",
        file="sinks/delta/objects/options.py",
        old='options["aws_endpoint_url_s3"] = ',
        new='options["aws_endpoint"] = ',
        tests=(REFUSED,),
    ),
    Mutation(
        name="delta-rs assumes a role of the environment beside the keys of a connection",
        why="the log is written by somebody else than the files",
        file="sinks/delta/objects/options.py",
        old="        _check_environment(address, names, _ROLES)\n",
        new="",
        tests=(REFUSED,),
    ),
    Mutation(
        name="a stage that was published and replaced meanwhile is dropped",
        why="readers of older versions of the table lack its files",
        file="sinks/file/objects/stages.py",
        old="            if marked and found is None:\n",
        new="            if False:\n",
        tests=(TABLE,),
    ),
    Mutation(
        name="a stage in a bucket that somebody commits is removed without a version of its own",
        why="who sleeps before his commit puts files into the table that are gone",
        file="sinks/delta/objects/__init__.py",
        old="            if (had_begun or numbers) and not self._make_unpublishable(written):\n",
        new="            if False:\n",
        tests=(TABLE,),
    ),
    Mutation(
        name="the version behind which nobody publishes a dropped stage says that its batch was taken out",
        why="a copied table's rows of it count as put back, and later batches come in beside theirs",
        file="sinks/delta/objects/__init__.py",
        old="self._log.rearrange(\n                snapshot, [], info=",
        new="self._log.commit(\n                snapshot, [], key=written.key, number=0, info=",
        tests=(REFUSED,),
    ),
    Mutation(
        name="a stage that was published and replaced while it was dropped is removed",
        why="an older version of the table names files that are gone",
        file="sinks/delta/objects/__init__.py",
        old="                return self._stages.is_marked(written)\n",
        new="                return True\n",
        tests=(TABLE,),
    ),
    Mutation(
        name="files without a mark are a late driver's, whoever has them",
        why="the janitor removes files of a batch that is in the table",
        file="sinks/delta/objects/__init__.py",
        old="        if not self._stages.is_any(written) or self._numbers_of(written):\n",
        new="        if not self._stages.is_any(written):\n",
        tests=(TABLE,),
    ),
    Mutation(
        name="letters in a bucket are read without the connection of their table",
        why="where the environment has no credentials, they cannot be run again",
        file="sinks/delta/objects/__init__.py",
        old="access=self._access, requires",
        new="requires",
        tests=(TABLE,),
    ),
    Mutation(
        name="a token of the environment goes with the keys of a Delta table's connection",
        why="the service refuses keys that are right",
        file="sinks/delta/objects/options.py",
        old="            _check_environment(address, names, (*_TOKENS, *_UNPREFIXED[:2]))\n",
        new="            pass\n",
        tests=(REFUSED,),
    ),
]
