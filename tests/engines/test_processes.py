"""When a process of an attempt counts as gone."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from airflow_provider_microbatch.engines import processes

_FIRST_THREAD_ENDS = """
import ctypes, signal, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def _first_thread_gone(pid: int) -> psutil.Process:
    process = psutil.Process(pid)
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    return process


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_process_is_there_until_its_last_thread_has_ended() -> None:
    """Its first one may be gone already: a JVM that is killed still holds its ports then, and may be in a write."""
    with subprocess.Popen([sys.executable, "-c", _FIRST_THREAD_ENDS]) as started:
        try:
            process = _first_thread_gone(started.pid)
            assert processes.running(pid=started.pid, started=process.create_time()) is not None
            assert processes.end([process], grace=1)
            assert started.wait(timeout=10) == -9
        finally:
            started.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_it_is_found_by_its_tag_until_its_last_thread_has_ended() -> None:
    """Who looks afresh has only the tag, and the kernel shows the command line at the threads that are left only."""
    tag = processes.new_tag()
    with subprocess.Popen([sys.executable, "-c", _FIRST_THREAD_ENDS, tag]) as started:
        try:
            process = _first_thread_gone(started.pid)
            assert processes.find(tag) == [process]
            assert processes.end_all(tag, grace=1)
            assert started.wait(timeout=10) == -9
            assert processes.find(tag) == []
        finally:
            started.kill()
