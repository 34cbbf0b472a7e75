"""What Airflow learns of the package from an install."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest

from airflow_provider_microbatch import __version__, settings
from airflow_provider_microbatch.get_provider_info import get_provider_info

PACKAGE = Path(__file__).resolve().parents[2] / "airflow_provider_microbatch"


def named_modules(info: dict[str, Any]) -> list[str]:
    kinds = ("operators", "sensors", "triggers", "hooks")
    return [module for kind in kinds for entry in info.get(kind, []) for module in entry["python-modules"]]


def test_the_info_is_valid_by_airflows_own_schema() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


@pytest.mark.parametrize("module", named_modules(get_provider_info()))
def test_every_module_it_names_imports(module: str) -> None:
    importlib.import_module(module)


@pytest.mark.parametrize("kind", ["operators", "sensors", "triggers"])
def test_no_module_of_a_kind_that_people_use_is_left_out(kind: str) -> None:
    named = {module.rpartition(".")[2] for module in named_modules(get_provider_info()) if f".{kind}." in module}
    public = {path.stem for path in (PACKAGE / kind).glob("*.py") if not path.stem.startswith("_")}
    defines = {"operators": "Operator(", "sensors": "Sensor(", "triggers": "Trigger("}[kind]
    holding = {
        name
        for name in public
        if any(
            line.startswith("class ") and defines in line.split(":")[0]
            for line in (PACKAGE / kind / f"{name}.py").read_text().splitlines()
        )
    }
    assert holding == named


def test_airflow_knows_every_setting_that_is_read() -> None:
    read = [value for name, value in vars(settings).items() if name[0] != "_" and name.isupper() and name != "SECTION"]
    assert sorted(get_provider_info()["config"][settings.SECTION]["options"]) == sorted(read)


def test_every_decorator_is_callable() -> None:
    for entry in get_provider_info()["task-decorators"]:
        module, _, name = entry["class-name"].rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_the_entry_points_of_the_install_load() -> None:
    (provider,) = [point for point in entry_points(group="apache_airflow_provider") if "microbatch" in point.value]
    assert provider.load()()["package-name"] == "airflow-provider-microbatch"
    (plugin,) = [point for point in entry_points(group="airflow.plugins") if "microbatch" in point.value]
    assert plugin.load().name
    (script,) = [point for point in entry_points(group="console_scripts") if point.name == "microbatch"]
    assert callable(script.load())


ASK_AIRFLOW = """
import json
from airflow import plugins_manager
from airflow.providers_manager import ProvidersManager
from airflow.sdk import task
manager = ProvidersManager()
provider = manager.providers["airflow-provider-microbatch"]
plugins, errors = plugins_manager._get_plugins()
print("said:" + json.dumps({
    "version": provider.version,
    "plugins": [plugin.name for plugin in plugins],
    "errors": errors,
    "decorator": callable(task.micro_batch),
}))
"""


@pytest.mark.airflow
@pytest.mark.parametrize("lazy", ["True", "False"])
def test_airflow_finds_provider_plugin_and_decorator(lazy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # With lazy discovery off Airflow also loads plugins that provider info names: ours must not come twice.
    monkeypatch.setenv("AIRFLOW__CORE__LAZY_DISCOVER_PROVIDERS", lazy)
    monkeypatch.setenv("AIRFLOW__CORE__LAZY_LOAD_PLUGINS", lazy)
    run = subprocess.run([sys.executable, "-c", ASK_AIRFLOW], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    said = json.loads(next(line for line in run.stdout.splitlines() if line.startswith("said:"))[5:])
    assert said["version"] == __version__
    assert any("micro" in name for name in said["plugins"])
    assert said["errors"] == {}
    assert said["decorator"]
