"""Machines share nothing: no file, no process, no name; and nothing is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from demo.composition import prepare
from demo.machines import MachineError, check

ROOT = Path(__file__).resolve().parents[2]

_TWO = """
import json, os, sys
from pathlib import Path
from demo.machines import HERE, Machine, enter_own_network, leave_own_network

home = Path(sys.argv[1])
for folder in ("machines", "secrets"):
    (home / folder).mkdir()
(home / "secrets" / "key").write_text("a secret")
enter_own_network(home / "machines")
one = Machine("one", number=2, folder=home / "machines" / "one", volumes={"/opt/secrets": (home / "secrets", False)})
two = Machine("two", number=3, folder=home / "machines" / "two", folders=["/data"])
for machine in (one, two):
    machine.boot({"one": one.address, "two": two.address})

def said(machine, script):
    reader, writer = os.pipe()
    done = machine.start(["sh", "-c", f"exec 2>/dev/null; {script}"], env={"PATH": os.environ["PATH"]}, output=writer)
    os.close(writer)
    with os.fdopen(reader) as text:
        answer = text.read()
    done.wait()
    return answer.split()

mine = home / "here"
told = {"names": [said(machine, "hostname")[0] for machine in (one, two)]}
said(one, f"touch /tmp/of-one {mine}; sleep 100 >/dev/null 2>&1 &")
told["processes"] = [[process.name() for process in machine.processes()] for machine in (one, two)]
told["seen by two"] = said(two, "cat /proc/[0-9]*/comm | grep -c sleep; ls -d /tmp/of-one; ls -d /data")
told["here"] = mine.exists() or Path("/tmp/of-one").exists()
told["volume"] = said(one, "cat /opt/secrets/key; echo; touch /opt/secrets/other || echo refused")
told["by name"] = said(two, "getent hosts one")
one.crash()
told["after a crash"] = [process.name() for process in one.processes()]
one.boot({"one": one.address, "two": two.address})
told["at the next boot"] = said(one, "ls /tmp/of-one || echo gone")
one.crash()
two.crash()
leave_own_network(home / "machines")
print(json.dumps(told))
"""


_KILLED = """
import os, signal, sys
from pathlib import Path
from demo.machines import Machine, enter_own_network

home = Path(sys.argv[1])
home.mkdir()
enter_own_network(home)
machine = Machine("one", number=2, folder=home / "one")
machine.boot({})
machine.start(["sleep", sys.argv[2]], env={"PATH": os.environ["PATH"]})
while not (running := machine.processes()) or running[0].name() != "sleep":
    pass
print(running[0].pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def machines() -> None:
    """Where they can be made."""
    try:
        check()
    except MachineError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.usefixtures("machines")
def test_what_one_machine_writes_or_runs_no_other_sees(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _TWO, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["names"] == ["one", "two"]
    assert told["processes"] == [["sleep"], []]
    assert told["seen by two"] == ["1", "/data"], "its own first process, and its own folder"
    assert not told["here"]
    assert told["volume"] == ["a", "secret", "refused"]
    assert told["by name"] == ["10.83.0.2", "one"]
    assert told["after a crash"] == []
    assert told["at the next boot"] == ["gone"]
    assert list((tmp_path / "machines").iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("machines")
def test_a_machine_ends_with_who_made_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _KILLED, str(tmp_path / "machines"), "1234"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(10.0)


def test_who_lacks_a_program_reads_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    for program, package in (("unshare", "util-linux"), ("ip", "iproute2"), ("redis-server", "redis-server")):
        with pytest.raises(MachineError, match=f"{program!r} is not on PATH: apt-get install {package}"):
            prepare()
        for name in ("unshare", "nsenter", "setpriv", *(["ip"] if program != "unshare" else [])):
            (tmp_path / name).touch(mode=0o755)


def test_who_is_not_root_reads_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MachineError, match="as root"):
        prepare()
