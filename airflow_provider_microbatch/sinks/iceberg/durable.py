"""Files of a table that last through a power cut before the catalog names them."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO


class DurableFileIO(PyArrowFileIO):
    """pyiceberg's own FileIO, except that a file in a folder of this machine is on disk when it is closed."""

    def new_output(self, location: str) -> PyArrowFile:
        """The file to write at ``location``."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _DurableFile(fs=self.fs_by_scheme(scheme, netloc), location=location, path=path)


class _DurableFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        path = Path(self._path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return _Durable(path, "wb" if overwrite else "xb")


class _Durable(io.FileIO):
    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self._folder = path.parent

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        while rest:
            rest = rest[super().write(rest) or 0 :]
        return len(data)

    def close(self) -> None:
        if self.closed:
            return
        os.fsync(self.fileno())
        super().close()
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
