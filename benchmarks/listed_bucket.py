"""``python -m benchmarks.listed_bucket KEYS``: a bucket that does nothing but list and look, as fast as Python can, so
that what a plan does beside the listing is not hidden by a service's answers. Prints its port, and ends when its
standard input does.

Moto sorts all keys of a bucket for each page, which takes hours over a million.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.child_server import serve

PER_FOLDER = 1_000
LAND = "/_land"
"""When this is asked, one folder more is there, which sorts after all others."""
WRITTEN = 1_767_225_600
"""When each object was written, seconds since the epoch."""
SIZE = 10

_HEAD = '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
_ENTRY = (
    "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    "<ETag>{etag}</ETag><Size>{size}</Size></Contents>"
)


def folder_of(number: int) -> list[str]:
    """Its keys."""
    return [f"landing/date={number:06d}/part-{part:05d}-{number:08x}.json" for part in range(PER_FOLDER)]


def etag_of(key: str) -> str:
    """Of an object: no two have the same."""
    return f'"{key[-22:-5]}"'


class _Bucket(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # each answer would wait for 40 ms
    keys: list[str]

    def log_message(self, *given: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if "list-type" in query:
            self._answer(200, self._page(query))
        elif url.path == LAND:
            self.keys.extend(folder_of(len(self.keys) // PER_FOLDER))
            self._answer(200, "")
        else:
            self._answer(404, "<Error><Code>NoSuchKey</Code></Error>")

    def do_HEAD(self) -> None:
        key = unquote(urlsplit(self.path).path).split("/", 2)[2]
        at = bisect_left(self.keys, key)
        if at == len(self.keys) or self.keys[at] != key:
            self.send_response(404)
            self.send_header("Content-Length", "0")
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(SIZE))
            self.send_header("ETag", etag_of(key))
            self.send_header("Last-Modified", formatdate(WRITTEN, usegmt=True))
        self.end_headers()

    def _answer(self, status: int, body: str) -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _page(self, query: dict[str, str]) -> str:
        prefix = query.get("prefix", "")
        after = query.get("continuation-token", query.get("start-after", ""))
        first = max(bisect_left(self.keys, prefix), bisect_right(self.keys, after) if after else 0)
        found = self.keys[first : first + min(int(query.get("max-keys", 1_000)), 1_000)]
        found = [key for key in found if key.startswith(prefix)]
        rest = first + len(found) < len(self.keys) and self.keys[first + len(found)].startswith(prefix)
        entries = "".join([_ENTRY.format(key=key, etag=etag_of(key), size=SIZE) for key in found])
        token = f"<NextContinuationToken>{found[-1]}</NextContinuationToken>" if rest else ""
        told = f"<IsTruncated>{str(rest).lower()}</IsTruncated><KeyCount>{len(found)}</KeyCount>{token}"
        return f"{_HEAD}{told}{entries}</ListBucketResult>"


def main(keys: str) -> None:
    """Serve."""
    _Bucket.keys = [key for number in range(int(keys) // PER_FOLDER) for key in folder_of(number)]
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Bucket)
    serve(server)


if __name__ == "__main__":
    main(*sys.argv[1:])
