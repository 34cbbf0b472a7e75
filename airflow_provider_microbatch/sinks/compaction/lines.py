"""Joins files of lines, one after the other, byte for byte: JSON lines, and CSV without a header."""

from __future__ import annotations

import gzip
import os
import shutil
import zlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.file.reading import open_regular

_PACKED = ".gz"
"""Members of a gzip file may follow each other; of other codecs not every reader reads more than the first."""


@dataclass(frozen=True)
class LineJoining:
    """:param format: ``json`` or ``csv``.
    :param options: the options that Spark wrote the files with.
    """

    format: str
    options: Mapping[str, str] = field(default_factory=dict)

    def kind(self, file: Path) -> Hashable:
        told = {name.casefold(): value for name, value in self.options.items()}
        odd: list[str] = [name for name in ("encoding", "charset", "linesep") if name in told]
        if self.format == "csv" and told.get("header", "false").casefold() == "true":
            odd.append("header")
        if odd:
            raise SinkError(f"files of {self.format} with the option {odd[0]!r} cannot be joined line by line")
        end = file.name.partition(f".{self.format}")[2]
        if end not in ("", _PACKED):
            raise SinkError(f"files of {self.format} that are packed as {end!r} cannot be joined; of gzip they can")
        return end

    def join(self, files: Sequence[Path], target: Path) -> None:
        if self.format == "csv":
            _check_without_header(files)
        with target.open("xb") as joined:
            for file in files:
                with open_regular(file) as part:
                    if not file.name.endswith(_PACKED):
                        _check_ends_with_a_line(file, part.fileno())
                    shutil.copyfileobj(part, joined)


def _check_ends_with_a_line(file: Path, descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        raise SinkError(f"{file} does not end with the end of a line: joined, its last row would be another one")


def _check_without_header(files: Sequence[Path]) -> None:
    # The options say how files are written now; these may be older.
    firsts = set()
    for file in files:
        with open_regular(file) as part:
            try:
                firsts.add((gzip.GzipFile(fileobj=part) if file.name.endswith(_PACKED) else part).readline())
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise SinkError(f"{file} cannot be read as gzip: {error}") from error
    if len(firsts - {b""}) == 1:
        raise SinkError(f"{files[0]} and those beside it begin with the same line, which may be a header")
