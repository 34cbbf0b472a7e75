"""Definitions (pipelines, sources, sinks, hooks) as plain data that triggers, job files and listeners can carry.

A definition is a frozen dataclass. Its form is ``{"class": "module:Name", "version": 1, "arguments": {…}}``: the same
at every parse, with connection ids but never a secret.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, Self, TypeVar

from airflow_provider_microbatch.exceptions import DefinitionError, UntrustedError
from airflow_provider_microbatch.registry import load_stored_class, of_today
from airflow_provider_microbatch.settings import SECTION, TRUSTED_SERVERS, settings

D = TypeVar("D", bound="Definition")

_read_back: ContextVar[bool] = ContextVar("read_back", default=False)


def is_read_back() -> bool:
    """Whether the definition under construction is read back from a stored form. Checks that concern only its author (a
    credential among its options, say) are not made again then. Refusing the definition now would not undo that it was
    stored, and then no command could find out what an earlier attempt has made, and where."""
    return _read_back.get()


@contextlib.contextmanager
def reading_back() -> Iterator[None]:
    """Construct definitions from their stored forms within the block; see :func:`is_read_back`."""
    token = _read_back.set(True)
    try:
        yield
    finally:
        _read_back.reset(token)


def class_path(cls: type) -> str:
    """The path of a class, ``module:Name``, by which another process can import the class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def _plain(value: Any) -> Any:
    if isinstance(value, Definition):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _revive(value: Any, known: Collection[type]) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {"class", "version", "arguments"}:
            return _made(Definition, value, known)
        return {key: _revive(item, known) for key, item in value.items()}
    if isinstance(value, list):
        return [_revive(item, known) for item in value]
    return value


class Definition:
    """Base of everything a user writes down about a pipeline. Subclasses are frozen dataclasses whose fields are JSON
    values, definitions, or mappings and lists of JSON values and definitions. Their constructors check the fields and
    touch nothing outside."""

    version: ClassVar[int] = 1

    def classes(self) -> set[type]:
        """The class of this definition, and the classes of the definitions in its fields."""
        return {type(self)}.union(*(part.classes() for part in self._parts()))

    def servers(self) -> set[str]:
        """Addresses of the servers that this definition, and the definitions in its fields, speak to. A subclass that
        names a server in a field of its own overrides this method: a server that a checkpoint names is spoken to only
        if the DAG or the settings name the server too. Servers behind an Airflow connection do not count."""
        return set[str]().union(*(part.servers() for part in self._parts()))

    def _parts(self) -> Iterator[Definition]:
        values = [getattr(self, field.name) for field in dataclasses.fields(self) if field.init]  # type: ignore[arg-type]
        while values:
            value = values.pop()
            if isinstance(value, Definition):
                yield value
            elif isinstance(value, (Mapping, list, tuple)):
                values += value.values() if isinstance(value, Mapping) else value

    def to_dict(self) -> dict[str, Any]:
        """The definition as JSON values."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {
            "class": class_path(type(self)),
            "version": self.version,
            "arguments": {field.name: _plain(getattr(self, field.name)) for field in fields if field.init},
        }

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        live: Sequence[Definition] = (),
        known: Collection[type] = (),
        any_server: bool = False,
    ) -> Self:
        """Rebuild a definition from the form that :meth:`to_dict` wrote, in a place where others can write too.

        :param live: definitions at hand, as in a process that has read the DAG file: a live definition of the same form
            is returned itself, and nothing is loaded. The rebuilt definition may name their servers.
        :param known: classes at hand; any other class is loaded only if it may be, see
            :func:`~airflow_provider_microbatch.registry.load_stored_class`.
        :param any_server: the form comes from the DAG, through Airflow or this process, and not out of a checkpoint:
            the servers that the form names are the DAG's. Or the definition is only compared with others, and what is
            opened by it is asked for nothing before :func:`check_servers`.
        :raises UntrustedError: if the class must not be loaded (the class was not imported), or if the definition names
            a server that neither ``live`` nor the settings name (nothing was sent there).
        :raises DefinitionError: if the class cannot be imported, is of another kind or another version, or does not
            have the fields that are written there.
        """
        if not isinstance(data, Mapping):
            raise DefinitionError(f"{data!r:.100} is no definition.")
        data = of_today(data)
        for one in live:
            if isinstance(one, cls) and one.to_dict() == data:
                return one
        made = _made(cls, data, known)
        if not any_server:
            check_servers(made, live=live)
        return made

    @classmethod
    def as_far_as_known(cls, data: Mapping[str, Any], *, known: Collection[type] = ()) -> Self | None:
        """The definition that another version of this class wrote, of those of its arguments that the class has now and
        that can be loaded here; None if these make none. To be compared with others, never to be used.

        :param data: as for :meth:`from_dict`.
        :param known: as for :meth:`from_dict`.
        """
        arguments = data.get("arguments")
        if data.get("class") != class_path(cls) or not isinstance(arguments, Mapping):
            return None
        values = dict[str, Any]()
        for name in arguments.keys() & _fields(cls):
            with contextlib.suppress(DefinitionError):
                values[name] = _revive(arguments[name], known)
        try:
            with reading_back():
                return cls(**values)
        except Exception:  # a field that it needs has another name now, or another meaning
            return None


def _fields(cls: type) -> set[str]:
    return {field.name for field in dataclasses.fields(cls) if field.init}


def _made(cls: type[D], data: Mapping[str, Any], known: Collection[type]) -> D:
    path = data.get("class")
    loaded = next((one for one in known if class_path(one) == path), None) or load_stored_class(path)
    if not issubclass(loaded, cls):
        raise DefinitionError(f"{data.get('class')!r} is not a {cls.__name__}.")
    if data.get("version") != loaded.version:
        raise DefinitionError(
            f"{data['class']} was written as version {data.get('version')}, this package reads {loaded.version}. "
            "Use the same package version on workers, triggerer and scheduler."
        )
    arguments = data.get("arguments") or {}
    if not isinstance(arguments, Mapping):
        raise DefinitionError(f"{path!r}: its arguments are {arguments!r:.100}, not an object.")
    unknown = sorted(set(arguments) - _fields(loaded))
    if unknown:
        raise DefinitionError(
            f"{data['class']} has no field {', '.join(map(repr, unknown))}: this definition was written by another "
            "version of that class. Use the same package version on workers, triggerer and scheduler."
        )
    revived = {name: _revive(value, known) for name, value in arguments.items()}
    try:
        with reading_back():
            return loaded(**revived)
    except DefinitionError:
        raise
    except Exception as error:  # the constructor may be a user's: its error concerns this definition alone
        raise DefinitionError(
            f"{data['class']} cannot be made of {sorted(arguments)}: {type(error).__name__}: {error}"
        ) from error


def check_servers(made: Definition, *, live: Sequence[Definition]) -> None:
    """Check that the servers which a definition out of a checkpoint names may be spoken to.

    :param live: definitions at hand, which may name them.
    :raises UntrustedError: if neither ``live`` nor the settings name one of them.
    """
    trusted = set(settings().trusted_servers).union(*(one.servers() for one in live))
    for server in sorted(made.servers() - trusted):
        raise UntrustedError(
            f"{class_path(type(made))!r} speaks to {server!r:.200}, which only a checkpoint names, so nothing was sent "
            f"there. If it is yours, trust it in Airflow's configuration, as it is written in the pipeline: "
            f"[{SECTION}] {TRUSTED_SERVERS} = {server:.200} "
            f"(AIRFLOW__{SECTION.upper()}__{TRUSTED_SERVERS.upper()}={server:.200})."
        )
