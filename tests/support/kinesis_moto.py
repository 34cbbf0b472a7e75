"""``python -m tests.support.kinesis_moto``: moto's Kinesis as a process of its own. Prints its port, and ends when its
standard input does. What moto lacks of Kinesis, :mod:`tests.support.kinesis_streams` has."""

from __future__ import annotations

import logging

from werkzeug.serving import make_server

from tests.support.child_server import serve
from tests.support.object_store_server import ByService, KeptAlive, one_after_the_other


def main() -> None:
    """Serve until standard input ends."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = one_after_the_other(ByService())
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=KeptAlive)
    serve(server)


if __name__ == "__main__":
    main()
