"""The listening sockets of this machine and their users, as Linux reports them.

The sockets are listed by netlink (sock_diag(7)), which goes through the listening sockets alone: some 50 microseconds.
``/proc/net/tcp`` has the same data, but goes through all places for connections too: milliseconds, at each call to a
server. Where the kernel does not answer netlink, as in a sandbox, the files are read.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = 10  # TCP_LISTEN
_SOCK_DIAG, _BY_FAMILY = 4, 20  # NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
_INTERRUPTED = 0x10  # NLM_F_DUMP_INTR: the sockets changed during the dump, and some may be missing
_HEADER = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBxI48x")
_FOUND = struct.Struct("=B3x")
_PORT, _ADDRESS, _OWNER = 4, 8, 64
_SECONDS = 1.0


@dataclass(frozen=True)
class Listener:
    """A listening socket.

    :param address: in the network's byte order; 4 or 16 bytes.
    :param port: its port.
    :param uid: id of the user that the socket belongs to.
    """

    address: bytes
    port: int
    uid: int


def listeners() -> list[Listener]:
    """The listening sockets of this network namespace; empty where the system does not report them."""
    try:
        return [found for family in (socket.AF_INET, socket.AF_INET6) for found in _by_netlink(family)]
    except (OSError, AttributeError, struct.error):  # another system, no netlink, or an answer that is not understood
        return [found for table in TABLES for found in _by_table(table)]


def _by_netlink(family: int) -> Iterator[Listener]:
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 1 << _LISTENS)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(_SECONDS)
        kernel.send(_HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST_DUMP, 1, 0) + asked)
        while True:
            answer = kernel.recv(1 << 16)
            while answer:
                length, kind, flags, _, _ = _HEADER.unpack_from(answer)
                if kind == _DONE:
                    return
                if kind == _ERROR or flags & _INTERRUPTED:
                    raise OSError("the kernel does not tell which sockets listen")
                message = answer[_HEADER.size : length]
                (found,) = _FOUND.unpack_from(message)
                size = 4 if found == socket.AF_INET else 16
                (port,) = struct.unpack_from("!H", message, _PORT)
                (uid,) = struct.unpack_from("=I", message, _OWNER)
                yield Listener(message[_ADDRESS : _ADDRESS + size], port, uid)
                answer = answer[(length + 3) & ~3 :]


def _by_table(table: Path) -> Iterator[Listener]:
    try:
        lines = table.read_text(encoding="ascii").splitlines()
    except OSError:
        return
    for line in lines[1:]:
        _, local, _, state, _, _, _, owner, *_ = line.split()
        address, _, port = local.partition(":")
        if int(state, 16) == _LISTENS:
            yield Listener(_packed(address), int(port, 16), int(owner))


def _packed(address: str) -> bytes:
    """An address in the network's byte order, from the kernel's text: words of 32 bits in this machine's byte order."""
    words = (address[start : start + 8] for start in range(0, len(address), 8))
    return b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
