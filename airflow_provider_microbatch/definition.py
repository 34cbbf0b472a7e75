"""Definitions (pipelines, sources, sinks, hooks) as plain data that triggers, job files and listeners can carry.

A definition is a frozen dataclass. Its form is ``{"class": "module:Name", "version": 1, "arguments": {…}}``: the same
at every parse, with connection ids but never a secret.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from airflow_provider_microbatch.exceptions import DefinitionError


def class_path(cls: type) -> str:
    """``module:Name`` of a class that another process can import."""
    return f"{cls.__module__}:{cls.__qualname__}"


def load_class(path: str) -> type:
    """Import the class at ``module:Name``.

    :raises DefinitionError: if it cannot be imported here; the message names the module.
    """
    module_name, _, name = path.partition(":")
    try:
        loaded = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise DefinitionError(f"cannot load {path!r}: {error}. Install or ship the module that defines it.") from error
    if not isinstance(loaded, type):
        raise DefinitionError(f"{path!r} is not a class.")
    return loaded


def _plain(value: Any) -> Any:
    if isinstance(value, Definition):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _revive(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {"class", "version", "arguments"}:
            return Definition.from_dict(value)
        return {key: _revive(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_revive(item) for item in value]
    return value


class Definition:
    """Base of everything a user writes down about a pipeline. Subclasses are frozen dataclasses whose fields are JSON
    values, definitions, or mappings and lists of these, and whose constructors check and touch nothing."""

    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        """The definition as JSON values."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {
            "class": class_path(type(self)),
            "version": self.version,
            "arguments": {field.name: _plain(getattr(self, field.name)) for field in fields if field.init},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild what :meth:`to_dict` wrote.

        :raises DefinitionError: if the class cannot be imported, is of another kind, or of a newer version.
        """
        loaded = load_class(str(data.get("class")))
        if not issubclass(loaded, cls):
            raise DefinitionError(f"{data.get('class')!r} is not a {cls.__name__}.")
        if data.get("version") != loaded.version:
            raise DefinitionError(
                f"{data['class']} was written as version {data.get('version')}, this package reads {loaded.version}. "
                "Use the same package version on workers, triggerer and scheduler."
            )
        return loaded(**{name: _revive(value) for name, value in data["arguments"].items()})
