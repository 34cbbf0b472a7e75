"""Mutations of what leads to an Azure container, and of listings there."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

AZURE = "tests/contract/test_azure.py"

MUTATIONS = [
    Mutation(
        name="a service that lists from the beginning is asked to pass over a folder again and again",
        why="a poll on an Azure of before startFrom never ends",
        file="stores/object_store/__init__.py",
        old="            passed = _one_folder(keys) if jumps else None\n",
        new="            passed = _one_folder([one['path'].removeprefix(f'{folder}/') for one in page])\n",
        tests=(AZURE,),
    ),
    Mutation(
        name="an account's key in the environment counts beside a connection",
        why="the checkpoint of one account is looked for by the key of another, and nobody finds it",
        file="stores/object_store/credentials.py",
        old='        options |= {"sas_key": access.sas, **_by("sas_token")}\n',
        new='        options |= {"sas_key": access.sas}\n',
        tests=(AZURE,),
    ),
    Mutation(
        name="an account of another cloud is looked for in the public one",
        why="a name that a stranger may have is sent what the connection's token allows",
        file="stores/object_store/wasb.py",
        old='        at = cls(account=account, endpoint=url or f"https://{account}.blob.{_PUBLIC}")\n',
        new='        at = cls(account=account, endpoint=f"https://{account}.blob.{_PUBLIC}")\n',
        tests=(AZURE,),
    ),
    Mutation(
        name="a SAS token that has expired is told as a wrong key",
        why="somebody looks for another key, which nobody has changed",
        file="stores/object_store/failures.py",
        old="            expired=_TOO_LATE in text or (code is not None and code[1] in _EXPIRED),\n",
        new="            expired=code is not None and code[1] in _EXPIRED,\n",
        tests=(AZURE,),
    ),
]
