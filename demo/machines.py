"""Machines of the demo's own, as far as Linux makes them without hardware: each has a name, an address, processes and
files that no other one sees.

A machine's files are those of this one as they are, and what it writes stays with it (an overlay). So whoever relies on
a shared folder, or asks for a process of another machine by its id, finds nothing there.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

_NETWORK = "10.83.0"
HERE = f"{_NETWORK}.1"
"""The address by which machines reach what runs beside them, and not on one of them."""

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_BOOT_SECONDS = 20.0

# Its first process reaps what others leave, as an init does: with SIGCHLD ignored the kernel does it.
_BOOT = """\
set -eu
hostname {name}
mount --make-rprivate /
mount -t overlay overlay -o lowerdir=/,upperdir={folder}/written,workdir={folder}/work {folder}/root
cd {folder}/root
{mounts}
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs tmpfs dev/shm
mkdir -p {folders}
{volumes}
cp {folder}/hosts etc/hosts
touch {folder}/booted
trap '' CHLD
exec chroot . sleep infinity
"""


class MachineError(Exception):
    """Machines cannot be made here, or one did not boot."""


def check() -> None:
    """:raises MachineError: if machines cannot be made here; it says what is missing."""
    if not sys.platform.startswith("linux"):
        raise MachineError("Machines of its own are made of Linux' namespaces: run it on Linux.")
    if os.geteuid() != 0:
        raise MachineError("Namespaces and their mounts are root's: run it as root (in a virtual machine, say).")
    for program, package in (
        ("unshare", "util-linux"),
        ("nsenter", "util-linux"),
        ("setpriv", "util-linux"),
        ("ip", "iproute2"),
    ):
        if shutil.which(program) is None:
            raise MachineError(f"{program!r} is not on PATH: apt-get install {package}")


def enter_own_network(folder: Path) -> None:
    """Leave this machine's network and mounts for ones of this process' own, with room for machines in ``folder``: all
    of it is gone when the last process in it is. Call it before a thread is started.

    :param folder: is empty; what machines write is kept in memory there, since no overlay lies in what it lies over.
    :raises MachineError: if this system does not let it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise MachineError(f"This system makes no namespaces ({reason}): containers often may not.")
    for command in (
        "mount --make-rprivate /",
        f"mount -t tmpfs -o mode=0700 tmpfs {shlex.quote(str(folder))}",
        "ip link set lo up",
        "ip link add machines type bridge",
        f"ip addr add {HERE}/24 dev machines",
        "ip link set machines up",
    ):
        _run(command)


def leave_own_network(folder: Path) -> None:
    """Give back what machines have written; they are off. The network itself goes with this process."""
    _run(f"umount --lazy {shlex.quote(str(folder))}")


class Machine:
    """One machine; :meth:`boot` starts it.

    :param name: its host name.
    :param number: the last part of its address: 2 to 254, each once.
    :param folder: for its files; empty or missing.
    :param volumes: folders and files of here by where the machine sees them, with whether it may write there.
    :param folders: are made, if they are not there.
    """

    def __init__(
        self,
        name: str,
        *,
        number: int,
        folder: Path,
        volumes: Mapping[str, tuple[Path, bool]] | None = None,
        folders: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.address = f"{_NETWORK}.{number}"
        self.written = folder / "written"
        self._folder = folder
        self._number = number
        self._volumes = dict(volumes or {})
        self._folders = tuple(folders)
        self._namespaces: subprocess.Popen[bytes] | None = None
        self.init: psutil.Process | None = None
        """Its first process; None while it is off."""

    @property
    def is_on(self) -> bool:
        """Whether it has booted, and nobody has cut its power."""
        return self.init is not None

    def boot(self, hosts: Mapping[str, str]) -> None:
        """Start it, with files as at its first boot.

        :param hosts: addresses by host name, its own among them.
        :raises MachineError: if it does not start.
        """
        shutil.rmtree(self._folder, ignore_errors=True)
        for part in ("written", "work", "root"):
            (self._folder / part).mkdir(parents=True)
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in hosts.items())]
        (self._folder / "hosts").write_text("\n".join(lines) + "\n")
        script = _BOOT.format(
            name=shlex.quote(self.name),
            folder=shlex.quote(str(self._folder)),
            mounts="\n".join(_mounts_below_root()),
            volumes="\n".join(line for at, volume in self._volumes.items() for line in _mount(at, *volume)),
            folders=" ".join(shlex.quote(f".{folder}") for folder in ("/tmp", *self._folders)),
        )
        # With the thread that made it, however that ends: nothing may be left of a demo that was killed.
        apart = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--uts",
            "--ipc",
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
        ]
        self._namespaces = subprocess.Popen(
            [*apart, "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        deadline = time.monotonic() + _BOOT_SECONDS
        while not (self._folder / "booted").exists():
            if self._namespaces.poll() is not None or time.monotonic() > deadline:
                self.crash()
                assert self._namespaces.stderr is not None
                said = self._namespaces.stderr.read().decode(errors="replace")
                raise MachineError(f"machine {self.name} did not boot: {said}")
            time.sleep(0.02)
        (self.init,) = psutil.Process(self._namespaces.pid).children()
        self._connect(self.init.pid)

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str = "/",
        output: int | IO[bytes] = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start a program on the machine; the process that is returned ends with it.

        :param env: its whole environment.
        """
        assert self.init is not None, "booted"
        into = ["nsenter", "--target", str(self.init.pid), "--uts", "--ipc", "--net", "--mount", "--pid", "--root"]
        return subprocess.Popen(
            [*into, "env", f"--chdir={cwd}", "--ignore-environment", *(f"{k}={v}" for k, v in env.items()), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def processes(self) -> list[psutil.Process]:
        """What runs on it, but its first process: each with the id that it has here, which it does not know itself."""
        return processes_of([self])

    def crash(self) -> None:
        """End it, and at once with it all that runs on it. What it has written is gone at its next boot. Idempotent."""
        if self._namespaces is None:
            return
        for process in (self.init, psutil.Process(self._namespaces.pid) if self._namespaces.poll() is None else None):
            with suppress(psutil.Error):
                if process is not None:
                    process.send_signal(signal.SIGKILL)
        self._namespaces.wait()
        self.init = None

    def _connect(self, pid: int) -> None:
        cable = f"machine{self._number}"
        _run(f"ip link add {cable} type veth peer name eth0 netns {pid}")
        _run(f"ip link set {cable} master machines up")
        for inside in ("link set lo up", f"addr add {self.address}/24 dev eth0", "link set eth0 up"):
            _run(f"nsenter --target {pid} --net ip {inside}")


def processes_of(machines: Iterable[Machine]) -> list[psutil.Process]:
    """What runs on any of the machines; see :meth:`Machine.processes`."""
    first = {init.pid for machine in machines if (init := machine.init) is not None}
    spaces = {space for pid in first if (space := _process_space(pid)) is not None}
    return [
        process
        for process in psutil.process_iter()
        if process.pid not in first and _process_space(process.pid) in spaces and _runs(process)
    ]


def _mounts_below_root() -> list[str]:
    """An overlay shows one file system: others in which programs lie that are needed are shown as they are, to read."""
    needed = {Path(path).resolve() for path in (__file__, sys.prefix, sys.base_prefix, shutil.which("java") or "/")}
    root = Path("/").stat().st_dev
    others = {mount for path in needed if path.stat().st_dev != root if (mount := _mount_point(path)) != Path("/")}
    mounts = (shlex.quote(str(mount)) for mount in sorted(others))
    return [f"mkdir -p .{mount} && mount --bind -o ro {mount} .{mount}" for mount in mounts]


def _mount_point(path: Path) -> Path:
    while not path.is_mount():
        path = path.parent
    return path


def _mount(at: str, source: Path, may_write: bool) -> list[str]:
    inside, outside = shlex.quote(f".{at}"), shlex.quote(str(source))
    make = f"mkdir -p {inside}" if source.is_dir() else f"mkdir -p {shlex.quote(f'.{Path(at).parent}')}; touch {inside}"
    return [make, f"mount --bind {outside} {inside}", *([] if may_write else [f"mount -o remount,ro,bind {inside}"])]


def _process_space(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _run(command: str) -> None:
    done = subprocess.run(shlex.split(command), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MachineError(f"{command}: {done.stderr.strip()}")
