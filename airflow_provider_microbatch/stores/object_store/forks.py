"""Makes the library usable in a process that was forked from one that has used it.

The library sends its requests in threads of its own. A fork takes no threads along, and the library does not notice:
every request in the child waits for ever. Airflow forks: a scheduler writes a mark into a checkpoint, and its
executor's workers are forked from it later. So a forked process loads the library a second time, from a copy in memory:
the loader identifies libraries by their files, and gives the copy its own threads and memory.

No object of the library is stored, and the library is never imported by name: each use calls :func:`library`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.registry import DISTRIBUTION

EXTRA = "object-store"
_PACKAGE = "obstore"
_EXTENSION = "obstore._obstore"


class _State:
    """State of this process."""

    is_used = False
    is_stale = False
    """Whether the loaded library has left its threads in the parent process."""
    lock = threading.Lock()
    file = ""


def library() -> Any:
    """Return ``obstore``, with its threads in this process.

    :raises CheckpointError: if the package is not installed.
    """
    try:
        _import()
    except ImportError as error:
        raise CheckpointError(
            f"a checkpoint on an object store needs a package that is not installed ({error}). "
            f"Run: pip install '{DISTRIBUTION}[{EXTRA}]'"
        ) from error
    with _State.lock:
        _State.file = _State.file or str(sys.modules[_EXTENSION].__file__)
        if _State.is_stale:
            _load_again()
            _State.is_stale = False
        _State.is_used = True
        return sys.modules[_PACKAGE]


def _load_again() -> None:
    for name in [name for name in sys.modules if name == _PACKAGE or name.startswith(f"{_PACKAGE}.")]:
        del sys.modules[name]
    copy = os.memfd_create(_PACKAGE)
    try:
        os.write(copy, Path(_State.file).read_bytes())
        place = f"/proc/self/fd/{copy}"
        spec = importlib.util.spec_from_file_location(_EXTENSION, place, loader=ExtensionFileLoader(_EXTENSION, place))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_EXTENSION] = module
        spec.loader.exec_module(module)
    finally:
        os.close(copy)
    _import()


def _import() -> None:
    # The last one is what obstore needs to give a listing as columns, and finds only when it lists.
    for module in (_PACKAGE, f"{_PACKAGE}.exceptions", f"{_PACKAGE}.store", "arro3.core"):
        importlib.import_module(module)


def _forked() -> None:
    _State.lock = threading.Lock()  # another thread may have held the lock
    _State.is_stale = _State.is_stale or _State.is_used
    _State.is_used = False


os.register_at_fork(after_in_child=_forked)
