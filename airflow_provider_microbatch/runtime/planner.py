"""A process that has PySpark and no JVM, and plans for one Python data source: it keeps the reader as long as it lives.

Questions arrive as lines of JSON on standard input; answers leave on standard output, a line each. The process ends
when its input does, and so ends with its parent process, however the parent ends.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from airflow_provider_microbatch.runtime.stream_readers import Position, StreamReader, open_reader


def answered(reader: StreamReader, question: Mapping[str, Any]) -> Any:
    """The answer to one question."""
    asked = question["do"]
    if asked == "initial":
        return reader.initial()
    if asked == "check":
        reader.check()
        return None
    if asked == "latest":
        return reader.latest(_start(reader, question), rows=question["rows"], bytes=question["bytes"])
    if asked == "commit":
        return reader.commit(question["end"])
    if asked == "rows":
        pieces = reader.pieces(_start(reader, question), question["end"])
        return [row for piece in pieces for found in reader.rows(piece) for row in _rows(found)]
    raise ValueError(f"a planner does not know {asked!r}")


def _start(reader: StreamReader, question: Mapping[str, Any]) -> Position:
    start: Position | None = question["start"]
    return reader.initial() if start is None else start


def _rows(found: Any) -> Iterator[Any]:
    """The row itself, or the rows of a record batch."""
    if hasattr(found, "to_pylist"):
        yield from ([*row.values()] for row in found.to_pylist())
    else:
        yield list(found)


def main() -> int:
    """Answer questions until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # Keep the prints of the user's code out of the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    opening = json.loads(sys.stdin.readline() or "null")
    if opening is None:
        return 0
    sys.path[:] = [*opening["path"], *(path for path in sys.path if path not in opening["path"])]
    reader: StreamReader | None = None
    for line in sys.stdin:
        try:
            if reader is None:
                reader = open_reader(opening)
            question = json.loads(line)
            # Rows are for people; an offset that is not JSON cannot be recorded, not even by Spark.
            answer = json.dumps(
                {"answer": answered(reader, question)}, default=str if question["do"] == "rows" else None
            )
        except Exception as error:
            told = "".join(traceback.format_exception(error))
            answer = json.dumps({"error": f"{type(error).__name__}: {error}", "traceback": told})
        _say(answers, answer)
    return 0


def _say(answers: TextIO, answer: str) -> None:
    answers.write(f"{answer}\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
