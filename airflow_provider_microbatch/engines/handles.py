"""Handles as checked values: a handle is read from a checkpoint, where user code can write.

A handle names processes, folders and servers that a cancel acts on. So every field must have exactly the form that its
engine gives it; the tag, by which processes and folders are found, is a UUID that cannot be guessed. A handle with one
wrong field is refused as a whole, before any of its processes, folders or servers is looked at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from airflow_provider_microbatch.engines.masters import Target
from airflow_provider_microbatch.engines.processes import check_tag
from airflow_provider_microbatch.exceptions import EngineError, HandleError

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_MASTER = re.compile(
    r"(local(-cluster)?(\[[0-9*, ]+\])?|yarn(-client|-cluster)?|(yarn|spark|k8s|mesos)://[^\s\"';|&<>`$]*)"
)
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_URL = re.compile(r"sc://([A-Za-z0-9_][A-Za-z0-9_.-]{0,254}|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_CONN_ID = re.compile(r"[\w#!()\-.:/\\]{1,250}")
_LONGEST_USER = 256
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LENGTH = 4096
_MAX_PID = 2**22
"""The highest process id that Linux assigns."""


@dataclass(frozen=True, kw_only=True)
class SubmitHandle:
    """An application of spark-submit.

    :param host: the host on which spark-submit was called.
    :param tag: the tag that the application's processes, its YARN application and its driver's pod carry.
    :param application: a name for people.
    :param target: where the application was submitted: master, deploy mode and namespace.
    """

    host: str
    tag: str
    application: str
    target: Target

    @classmethod
    def of(cls, handle: Mapping[str, Any], *, engine: str) -> Self:
        """:raises HandleError: if ``handle`` is no handle of that engine."""
        fields = _Fields(handle, engine=engine)
        deploy_mode = fields.text("deploy_mode", re.compile("client|cluster"))
        namespace = None if fields.get("namespace") is None else fields.text("namespace", _NAMESPACE)
        master = fields.text("master", _MASTER)
        return cls(
            host=fields.text("host", _HOST),
            tag=fields.tag(),
            application=fields.line("application"),
            target=Target(master=master, deploy_mode=deploy_mode, namespace=namespace),
        )


@dataclass(frozen=True, kw_only=True)
class ConnectHandle:
    """An attempt on a Spark Connect server.

    :param host: the host of the attempt's process.
    :param url: URL of the server, without parameters.
    :param conn_id: the connection that named the server.
    :param user: the user who owns the session.
    :param session: id of the session.
    :param tag: the tag that the attempt's operations carry.
    :param pid: id of the attempt's process.
    :param started: start time of that process, seconds since the epoch.
    :param application: a name for people.
    :param session_is_own: no other attempt uses the session; an earlier version shared it within a DAG run.
    """

    host: str
    url: str
    conn_id: str
    user: str
    session: str
    tag: str
    pid: int
    started: float
    application: str
    session_is_own: bool

    @classmethod
    def of(cls, handle: Mapping[str, Any], *, engine: str) -> Self:
        """:raises HandleError: if ``handle`` is no handle of that engine."""
        fields = _Fields(handle, engine=engine)
        pid, started = fields.get("pid"), fields.get("started")
        if not isinstance(pid, int) or isinstance(pid, bool) or not 1 < pid <= _MAX_PID:
            fields.refuse("pid")
        if not isinstance(started, (int, float)) or isinstance(started, bool) or not math.isfinite(started):
            fields.refuse("started")
        return cls(
            host=fields.text("host", _HOST),
            url=fields.text("url", _URL),
            conn_id=fields.text("conn_id", _CONN_ID),
            user=fields.user(),
            session=fields.text("session", _UUID),
            tag=fields.tag(),
            pid=pid,
            started=float(started),
            application=fields.line("application"),
            session_is_own=fields.get("session_is_own") is True,
        )


def readable(made: Mapping[str, Any], *, of: type[SubmitHandle | ConnectHandle], conn_id: str) -> dict[str, Any]:
    """A handle that its engine has just made, and can read: of any other one, once it is recorded, nobody could ask
    whether its attempt runs, or stop it.

    :param of: what the handle is read as.
    :param conn_id: the connection that the handle was made of.
    :raises EngineError: if the handle cannot be read.
    """
    try:
        of.of(made, engine=made["engine"])
    except _WrongFieldError as error:
        raise EngineError(
            f"the connection {conn_id!r} cannot be used: of an attempt's handle {error.told}, and {made['engine']} "
            "could neither ask for such an attempt nor stop it. Write it in another way."
        ) from error
    return dict(made)


class _WrongFieldError(HandleError):
    def __init__(self, engine: str, *, told: str) -> None:
        super().__init__(
            f"the handle of an attempt is none that the engine {engine} writes: {told}. Somebody else wrote it; it was "
            "not acted on. Look at who can write the checkpoint."
        )
        self.told = told


class _Fields:
    """Reads the fields of a handle; a field of the wrong form refuses the whole handle.

    :raises HandleError: if the handle is of another engine.
    """

    def __init__(self, handle: Mapping[str, Any], *, engine: str) -> None:
        self._engine = engine
        self._handle = handle if isinstance(handle, Mapping) else {}
        if self._handle.get("engine") != engine:
            self.refuse("engine")

    def get(self, name: str) -> Any:
        return self._handle.get(name)

    def text(self, name: str, pattern: re.Pattern[str]) -> str:
        value = self.get(name)
        if not isinstance(value, str) or len(value) > _LENGTH or not pattern.fullmatch(value):
            self.refuse(name)
        return value

    def line(self, name: str) -> str:
        """A text that may be written to a log: one line, and not long."""
        value = self.get(name)
        if not isinstance(value, str) or len(value) > _LENGTH or not value.isprintable():
            self.refuse(name)
        return value

    def user(self) -> str:
        """Any login that a connection may have: a server is told it as it is, apart from the URL."""
        value = self.line("user")
        if not 0 < len(value) <= _LONGEST_USER:
            self.refuse("user")
        return value

    def tag(self) -> str:
        try:
            return check_tag(self.get("tag"))
        except HandleError:
            self.refuse("tag")

    def refuse(self, name: str) -> NoReturn:
        raise _WrongFieldError(self._engine, told=f"its {name} is {self._handle.get(name)!r:.100}")
