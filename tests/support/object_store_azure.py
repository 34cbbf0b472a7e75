"""Azure Blob Storage of the tests' own: Azurite on loopback, started when it is first needed, one for a session and all
processes that it starts."""

from __future__ import annotations

import base64
import hmac
import os
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from airflow_provider_microbatch.connections import Connection
from tests.environments import node_packages
from tests.support.child_server import started_by

ACCOUNT, CONTAINER = "microbatchtests", "microbatch"
KEY = base64.b64encode(b"a-key-of-the-tests").decode()
_ENDPOINT = "MICROBATCH_TESTS_AZURE"
"""Names the server to processes that are started after it."""
_VERSION = "2021-12-02"
_END = Path(__file__).parent / "node" / "ends_with_stdin.js"


def endpoint() -> str:
    """The address of the server, which runs by now, with :data:`CONTAINER` in it. The environment's credentials lead
    there."""
    if _ENDPOINT not in os.environ:
        _start()
    return os.environ[_ENDPOINT]


def address(folder: Path) -> str:
    """The address of a checkpoint that belongs to a folder of the tests."""
    endpoint()
    return f"abfs://{CONTAINER}{folder.absolute()}"


def connection(conn_id: str, url: str, **fields: Any) -> Connection:
    """A connection to the account at a server, by a SAS token if nothing else is given: what a proxy changes in a
    request is not signed then."""
    given = {"extra": {"sas_token": sas()}} if not {"password", "extra"} & set(fields) else {}
    return Connection(
        **{"conn_id": conn_id, "conn_type": "wasb", "login": ACCOUNT, "host": f"{url}/{ACCOUNT}", **given, **fields}
    )


def sas(*, seconds: float = 3600.0, rights: str = "rwdl") -> str:
    """A SAS token of the container: Azurite takes one of the account for no deletion of many.

    :param seconds: its life from now on.
    :param rights: in Azure's letters and order.
    """
    told = {"sp": rights, "se": _from_now(seconds), "sv": _VERSION, "sr": "c"}
    place = f"/blob/{ACCOUNT}/{CONTAINER}"
    lines = (told["sp"], "", told["se"], place, "", "", "", told["sv"], told["sr"], *[""] * 7)
    return urlencode({**told, "sig": _signature("\n".join(lines))})


def put(key: str, body: bytes) -> None:
    """By another client than the one that is tested."""
    _ask("PUT", key, {}, body)


def delete(key: str) -> None:
    """By another client than the one that is tested."""
    _ask("DELETE", key, {}, None)


def load(folder: Path) -> None:
    """Put all files of a folder to :func:`address` of it."""
    endpoint()
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: put(str(path.absolute()).strip("/"), path.read_bytes()), files))


def environment(url: str) -> dict[str, str]:
    """What leads the environment's credentials to a server."""
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_SAS_TOKEN": sas(seconds=86_400.0),
        "AZURE_STORAGE_ENDPOINT": f"{url}/{ACCOUNT}",
    }


def _make_container() -> None:
    told = {"sp": "c", "ss": "b", "srt": "c", "se": _from_now(60.0), "sv": _VERSION}
    lines = (ACCOUNT, told["sp"], told["ss"], told["srt"], "", told["se"], "", "", told["sv"], "", "")
    _ask("PUT", "", {"restype": "container", **told, "sig": _signature("\n".join(lines))}, b"")


def _from_now(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _signature(text: str) -> str:
    return base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), "sha256")).decode()


def _ask(method: str, key: str, query: dict[str, str], body: bytes | None) -> None:
    url = f"{os.environ[_ENDPOINT]}/{ACCOUNT}/{CONTAINER}{f'/{quote(key)}' if key else ''}"
    headers = {"x-ms-version": _VERSION, "x-ms-blob-type": "BlockBlob"}
    asked = urllib.request.Request(f"{url}?{urlencode(query) or sas()}", data=body, method=method, headers=headers)
    with urllib.request.urlopen(asked, timeout=60):
        pass


def _start() -> None:
    program = node_packages("azurite") / "azurite" / "dist" / "src" / "blob" / "main.js"
    options = ["--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    command = ["node", "--require", str(_END), str(program), *options]
    url = started_by(command, told=_url, environment={"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"})
    os.environ.update(environment(url))
    os.environ[_ENDPOINT] = url
    _make_container()


def _url(line: str) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+", line)
    return "" if found is None else found[0]
