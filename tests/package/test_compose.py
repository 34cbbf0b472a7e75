"""docker-compose.yaml, as far as it can be held without a container engine: compose itself reads it, Airflow and Spark
know every setting and command in it, and it agrees with the lock files and with what `make demo` starts. What it starts
with the profile celery is started in tests/scheduler/test_orders_s3.py."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.cli.cli_parser import get_parser
from airflow.configuration import conf
from airflow.models.connection import Connection

from demo.composition import services as with_celery
from demo.local_airflow import COMPONENTS, LocalAirflow
from tests.environments import REPOSITORY, environment

IMAGE = "airflow-provider-microbatch:local"


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    """The services as compose's own `config` renders them."""
    program = environment("compose").with_name("docker-compose")
    command = [str(program), "--file", str(REPOSITORY / "docker-compose.yaml"), "config"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rendered: dict[str, dict[str, Any]] = yaml.safe_load(done.stdout)["services"]
    return rendered


def airflow_services(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in services.items() if name.startswith("airflow-")}


def workers(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in services.items() if name.startswith("airflow-worker-")}


def on_shared_disk(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in airflow_services(services).items() if name not in workers(services)}


def spark_services(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in services.items() if name.startswith("spark-")}


def pins(name: str) -> dict[str, str]:
    text = (REPOSITORY / "requirements" / name).read_text()
    return dict(re.findall(r"^([a-z0-9][a-z0-9._-]*)==([^\s;]+)", text, re.MULTILINE))


def settings(environment: dict[str, str]) -> dict[tuple[str, str], str]:
    found = {}
    for name, value in environment.items():
        if matched := re.fullmatch(r"AIRFLOW__([A-Z_]+?)__([A-Z0-9_]+)", name):
            found[matched[1].lower(), matched[2].lower()] = value
    return found


def test_one_image_and_one_user_and_one_python_run_airflow_and_spark(services: dict[str, dict[str, Any]]) -> None:
    ours = {name: service for name, service in services.items() if name not in ("postgres", "redis")}
    assert {service["image"] for service in ours.values()} == {IMAGE}
    assert not [name for name, service in ours.items() if "user" in service]
    dockerfile = (REPOSITORY / "docker" / "Dockerfile").read_text()
    assert re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE) == ["python:3.11-slim-bookworm"]
    assert len(re.findall(r"^USER (\S+)", dockerfile, re.MULTILINE)) == 1


def test_lake_and_checkpoints_are_one_volume_at_one_path(services: dict[str, dict[str, Any]]) -> None:
    for name, service in {**on_shared_disk(services), **spark_services(services)}.items():
        assert "data:/data:rw" in service["volumes"], name


def test_workers_of_celery_share_no_folder_that_they_may_write(services: dict[str, dict[str, Any]]) -> None:
    assert len(workers(services)) == 2
    for name, service in workers(services).items():
        assert sorted(volume.split(":", 1)[1] for volume in service["volumes"]) == [
            "/opt/airflow/dags:ro",
            "/opt/airflow/secrets:ro",
        ], name


def test_one_file_of_variables_turns_to_celery_and_names_all_that_can_be_named(
    services: dict[str, dict[str, Any]],
) -> None:
    file = (REPOSITORY / "docker-compose.yaml").read_text()
    variables = dict(re.findall(r"^(\w+)=(.*)$", (REPOSITORY / "docker" / "celery.env").read_text(), re.MULTILINE))
    assert set(re.findall(r"\$\{(\w+)", file)) == variables.keys() - {"COMPOSE_PROFILES"}
    of_celery = {
        name for name, service in services.items() if service.get("profiles") == [variables["COMPOSE_PROFILES"]]
    }
    assert of_celery == {*workers(services), "redis"}
    turned = settings(with_celery({})["airflow-scheduler"]["environment"])
    assert turned["core", "executor"] == "CeleryExecutor"
    assert turned["logging", "remote_logging"] == "True"
    assert settings(services["airflow-scheduler"]["environment"])["core", "executor"] == "LocalExecutor"


def test_the_dags_are_mounted_where_airflow_looks(services: dict[str, dict[str, Any]]) -> None:
    for name, service in airflow_services(services).items():
        folder = settings(service["environment"])["core", "dags_folder"]
        assert any(f"/dags:{folder}:ro" in volume for volume in service["volumes"]), name


def test_the_dags_find_their_data_on_the_shared_volume(services: dict[str, dict[str, Any]]) -> None:
    variable = "MICROBATCH_HOME"
    assert variable in (REPOSITORY / "demo" / "settings.py").read_text()
    for name, service in airflow_services(services).items():
        assert service["environment"][variable] == "/data", name


def test_every_package_in_the_image_has_the_version_that_is_tested() -> None:
    tested, shipped = pins("dev.txt"), pins("docker.txt")
    assert {name: shipped[name] for name in shipped.keys() & tested.keys()} == {
        name: tested[name] for name in shipped.keys() & tested.keys()
    }
    assert {"apache-airflow", "apache-airflow-providers-apache-spark", "pyspark", "pyspark-client"} <= shipped.keys()
    assert shipped["pyspark"] == shipped["pyspark-client"]
    dockerfile = (REPOSITORY / "docker" / "Dockerfile").read_text()
    assert set(re.findall(r"-r (requirements/\S+)", dockerfile)) == {
        "requirements/bootstrap.txt",
        "requirements/docker.txt",
    }


def test_a_task_in_the_image_finds_the_bytecode_of_what_it_imports_and_may_write_its_own() -> None:
    dockerfile = (REPOSITORY / "docker" / "Dockerfile").read_text()
    assert "PYTHONDONTWRITEBYTECODE" not in dockerfile
    installs = re.findall(r"uv pip install[^&\n]*", dockerfile)
    assert installs
    assert all("--compile-bytecode" in command for command in installs)


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    dockerfile = (REPOSITORY / "docker" / "Dockerfile").read_text()
    kept = set(re.findall(r"^!(\S+)", (REPOSITORY / ".dockerignore").read_text(), re.MULTILINE))
    copied = [name for line in re.findall(r"^COPY (.+) \S+$", dockerfile, re.MULTILINE) for name in line.split()]
    assert copied
    for name in copied:
        assert (REPOSITORY / name).exists(), name
        assert name.split("/")[0] in kept, name


def test_it_starts_the_components_that_the_demo_starts(services: dict[str, dict[str, Any]]) -> None:
    started = {service["command"][1] for name, service in on_shared_disk(services).items() if name != "airflow-init"}
    assert started == {arguments[0] for arguments in COMPONENTS.values()}


def test_airflow_knows_every_command(services: dict[str, dict[str, Any]]) -> None:
    parser = get_parser()
    for name, service in on_shared_disk(services).items():
        if name != "airflow-init":
            program, *arguments = service["command"]
            assert program == "airflow"
            parser.parse_args(arguments)
    assert re.findall(r"^airflow (.+)$", services["airflow-init"]["command"][-1], re.MULTILINE) == ["db migrate"]
    parser.parse_args(["db", "migrate"])


def test_the_init_script_is_a_shell_script_that_makes_each_secret_once(
    services: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    shell, flags, script = services["airflow-init"]["command"]
    folder = tmp_path / "secrets"
    folder.mkdir()
    script = script.replace("$$", "$").replace("/opt/airflow/secrets", str(folder)).replace("airflow db migrate", ":")
    script = script.replace("/data/", f"{tmp_path}/data/")
    made = []
    for _ in range(2):
        subprocess.run([shell, flags, script], check=True, stdin=subprocess.DEVNULL)
        made.append({path.name: path.read_text().strip() for path in folder.iterdir()})
    assert made[0] == made[1]
    assert len(set(made[0].values())) == 3
    environment = services["airflow-scheduler"]["environment"]
    read = {Path(value).name for name, value in environment.items() if name.endswith("_CMD")}
    assert read == made[0].keys()
    from cryptography.fernet import Fernet

    Fernet(made[0]["fernet"])


def test_airflow_knows_every_setting(services: dict[str, dict[str, Any]]) -> None:
    described = conf.configuration_description
    known = {(section, option) for section, about in described.items() for option in about["options"]}
    # Options of the provider, which only the image has; workers are started with them.
    known |= {("celery", "broker_url"), ("celery", "result_backend")}
    for service in airflow_services(services).values():
        for section, option in settings(service["environment"]):
            plain = option.removesuffix("_cmd")
            assert (section, plain) in known
            # Airflow reads the _CMD form of its sensitive settings only, and silently ignores any other.
            assert plain == option or (section, plain) in conf.sensitive_config_values


def test_every_component_has_the_same_settings(services: dict[str, dict[str, Any]]) -> None:
    (first, *others) = [service["environment"] for service in airflow_services(services).values()]
    assert all(other == first for other in others)


def test_it_decides_as_the_demo_where_both_decide(services: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    demo = settings(LocalAirflow(home=tmp_path, dags=tmp_path).env)
    ours = settings(services["airflow-scheduler"]["environment"])
    # What must differ: the place of the database and the folders, and the address.
    own = {("core", "dags_folder"), ("core", "execution_api_server_url"), ("database", "sql_alchemy_conn")}
    shared = (demo.keys() & ours.keys()) - own
    assert {("core", "executor"), ("core", "simple_auth_manager_all_admins"), ("core", "load_examples")} <= shared
    assert {key: ours[key] for key in shared} == {key: demo[key] for key in shared}
    # Secrets that all components must share are given in both.
    given = {(section, option.removesuffix("_cmd")) for section, option in ours}
    assert {("core", "fernet_key"), ("api_auth", "jwt_secret"), ("api", "secret_key")} <= given & demo.keys()


def test_tasks_reach_the_api_server_and_people_reach_only_this_machine(services: dict[str, dict[str, Any]]) -> None:
    command = services["airflow-api-server"]["command"]
    port = command[command.index("--port") + 1]
    url = settings(services["airflow-scheduler"]["environment"])["core", "execution_api_server_url"]
    assert url == f"http://airflow-api-server:{port}/execution/"
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    texts = [port if isinstance(port, str) else f"{port['published']}:{port['target']}" for port in published]
    assert all(text.startswith("127.0.0.1:") for text in texts), texts
    assert len({text.split(":")[1] for text in texts}) == len(texts)
    assert any(text.endswith(f":{port}") or text.endswith(f":{port}/tcp") for text in texts)


def test_the_spark_connection_is_the_master_that_the_worker_joins(services: dict[str, dict[str, Any]]) -> None:
    connection = Connection.from_json(services["airflow-scheduler"]["environment"]["AIRFLOW_CONN_SPARK_DEFAULT"])
    master = services["spark-master"]["command"]
    port = int(master[master.index("--port") + 1])
    assert (connection.conn_type, connection.host, connection.port) == ("spark", "spark://spark-master", port)
    # Spark runs no Python application in cluster mode on a standalone cluster.
    assert connection.extra_dejson["deploy-mode"] == "client"
    assert services["spark-worker"]["command"][-1] == f"spark://spark-master:{port}"


def test_spark_has_the_classes_that_are_started(services: dict[str, dict[str, Any]]) -> None:
    # find_spec does not import pyspark.
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations
    (core,) = (Path(spec.submodule_search_locations[0]) / "jars").glob("spark-core_*.jar")
    names = set(zipfile.ZipFile(core).namelist())
    for service in spark_services(services).values():
        program, main, *_ = service["command"]
        assert shutil.which(program)
        assert f"{main.replace('.', '/')}.class" in names


def test_the_database_is_the_one_that_compose_starts(services: dict[str, dict[str, Any]]) -> None:
    url = settings(services["airflow-scheduler"]["environment"])["database", "sql_alchemy_conn"]
    given = services["postgres"]["environment"]
    assert url == (
        f"postgresql+psycopg2://{given['POSTGRES_USER']}:{given['POSTGRES_PASSWORD']}@postgres:5432/"
        f"{given['POSTGRES_DB']}"
    )
    assert {"psycopg2-binary", "asyncpg"} <= pins("docker.txt").keys()
