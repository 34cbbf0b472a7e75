"""``python -m tests.support.object_store_server [HOST]``: moto's S3 as a process of its own. Prints its port, and ends
when its standard input does: with the process that started it, however that dies.

moto looks at a condition and puts in two steps, and takes a body that was cut off for a whole one; a service does
neither. So requests are taken one after the other, and what is not whole is refused.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from moto.core import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import make_server

from tests.support.child_server import serve

BUCKET = "microbatch"
LOAD = "/_load"
"""Asked with a ``folder`` of this machine: all its files become objects, in place of those that were below its path."""

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class KeptAlive(MotoRequestHandler):
    """Connections stay open, as those of a service do."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # each answer would wait for 40 ms


class ByService(DomainDispatcherApplication):
    """What answers for a host is found once: moto looks into each of its two hundred folders at each request."""

    def __init__(self) -> None:
        super().__init__(create_backend_app)
        self._found: dict[str | None, Any] = {}

    def get_backend_for_host(self, host: str | None) -> Any:
        if host not in self._found:
            self._found[host] = super().get_backend_for_host(host)
        return self._found[host]


def one_after_the_other(application: Application) -> Application:
    """``application``, to which no two requests come at once, and none that is cut off."""
    lock = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = b""
        with contextlib.suppress(OSError):
            body = environ["wsgi.input"].read(length) if length else b""
        if len(body) < length:
            start_response("400 Bad Request", [("Content-Length", "0"), ("Connection", "close")])
            return [b""]
        with lock:
            if environ["PATH_INFO"] == LOAD:
                load(Path(parse_qs(environ["QUERY_STRING"])["folder"][0]))
                start_response("200 OK", [("Content-Length", "0")])
                return [b""]
            return list(application({**environ, "wsgi.input": io.BytesIO(body)}, start_response))

    return serve


def load(folder: Path) -> None:
    """See :data:`LOAD`."""
    service, prefix = s3_backends[DEFAULT_ACCOUNT_ID]["aws"], str(folder).strip("/")
    for key in [key for key in service.buckets[BUCKET].keys if key.startswith(f"{prefix}/")]:
        service.delete_object(BUCKET, key)
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            service.put_object(BUCKET, f"{prefix}/{path.relative_to(folder)}", path.read_bytes())


def main(host: str = "127.0.0.1") -> None:
    """Serve until standard input ends."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket(BUCKET, "us-east-1")
    application = one_after_the_other(ByService())
    server = make_server(host, 0, application, threaded=True, request_handler=KeptAlive)
    serve(server)


if __name__ == "__main__":
    main(*sys.argv[1:])
