"""Mutations of the lines that put-if-absent stands on in an object store."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

OBJECTS, STORE = "tests/contract/test_object_store.py", "tests/contract/test_store.py"
IDENTITY = "tests/contract/test_identity.py"
PUTS = "stores/object_store/conditional.py"

MUTATIONS = [
    Mutation(
        name="a put in an object store replaces what is there",
        why="of two that take an epoch both have it",
        file=PUTS,
        old='                put.send("create")\n                return True\n',
        new='                put.send("overwrite")\n                return True\n',
        tests=(STORE,),
    ),
    Mutation(
        name="an object that a put without an answer has written counts as another's",
        why="an attempt that has taken its epoch believes that it has not, and nobody runs the batch",
        file=PUTS,
        old="                if found.mark == put.mark:\n                    return True\n",
        new="                if found.mark == put.mark and not put.doubtful:\n                    return True\n",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="an object of equal bytes counts as one's own",
        why="two attempts believe that they have put the same entry",
        file=PUTS,
        old="                if found.mark == put.mark:\n                    return True\n",
        new="                if found.entry.data == data:\n                    return True\n",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="a replacement of equal bytes counts as one's own",
        why="two that count up together count once",
        file=PUTS,
        old="            if found is not None and found.mark == put.mark:\n",
        new="            if found is not None and found.entry.data == data:\n",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="nobody notes that a put may have been done",
        why="what was put and replaced before anybody looked counts as never put, and is put once more",
        file=PUTS,
        old="        self.doubtful = True\n",
        new="        self.doubtful = False\n",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="what was put, and removed before anybody looked, is put again",
        why="what a command or retention has removed is back",
        file=PUTS,
        old='                raise self._unknown(key, "something was there, and is gone")\n',
        new="                continue\n",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="an object store is not tried before the first put",
        why="on a service that takes the condition and does not mind it two attempts both win",
        file=PUTS,
        old="        self._try_creating()\n        return self._create(key, data)\n",
        new="        return self._create(key, data)\n",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="an object store is not tried before the first replacement",
        why="on a service that does not compare two both replace",
        file=PUTS,
        old="        self._try_comparing()\n        return self._replace(key, data, mode)\n",
        new="        return self._replace(key, data, mode)\n",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="a removal that is sent again does not look again",
        why="the plan that came in the place of one that was taken back is gone, and its batch stays",
        file="stores/object_store/__init__.py",
        old="                if bytes(obs.get(client, key).bytes()) != data:\n",
        new="                if not was_sent and bytes(obs.get(client, key).bytes()) != data:\n",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="an identity service that is busy tells no identity",
        why="it is waited for ten seconds alone, and who waits is told to name credentials that nobody needs",
        file="stores/object_store/failures.py",
        old="number not in _PASSING_STATUS and any(",
        new="any(",
        tests=(IDENTITY,),
    ),
    Mutation(
        name="an identity service that gives no answer is not asked again",
        why="one hiccup of it fails the task, which is told to name credentials that nobody needs",
        file="stores/object_store/failures.py",
        old="        if self.malformed:\n            return False\n",
        new="        if self.malformed or self.nobody:\n            return False\n",
        tests=(IDENTITY,),
    ),
]
