"""The section [microbatch] of Airflow's configuration reaches the layers that import no Airflow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAY = (
    "import sys\n{first}\n"
    "from airflow_provider_microbatch import configuration, settings\n"
    "configuration.hand_down()\n"
    "given = settings.settings()\n"
    "print('said:', given.trusted_modules, given.trusted_servers, 'airflow' in sys.modules)\n"
)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("", id="without Airflow"),
        pytest.param("import airflow.sdk", id="in Airflow", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("where", ["environment", "file", "nowhere"])
def test_it_is_the_same_with_and_without_airflow(first: str, where: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__MICROBATCH")}
    environment["AIRFLOW_HOME"] = str(tmp_path)
    if where == "environment":
        environment["AIRFLOW__MICROBATCH__TRUSTED_MODULES"] = "acme.hooks, acme.sinks"
        environment["AIRFLOW__MICROBATCH__TRUSTED_SERVERS"] = "sc://a:1/;use_ssl=true, sc://b:2"
    if where == "file":
        (tmp_path / "airflow.cfg").write_text(
            "[microbatch]\ntrusted_modules = acme.hooks,acme.sinks,\n"
            "trusted_servers = sc://a:1/;use_ssl=true,sc://b:2\n"
        )
    done = subprocess.run(
        [sys.executable, "-c", SAY.format(first=first)], env=environment, capture_output=True, text=True, check=False
    )
    said = next((line for line in done.stdout.splitlines() if line.startswith("said:")), done.stderr)
    wanted = () if where == "nowhere" else ("acme.hooks", "acme.sinks")
    servers = () if where == "nowhere" else ("sc://a:1/;use_ssl=true", "sc://b:2")
    assert said == f"said: {wanted} {servers} {bool(first)}"
