"""What looks like a secret is neither stored nor written into a definition."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.attempts import Attempts
from airflow_provider_microbatch.checkpoint.codec import encode_commit
from airflow_provider_microbatch.checkpoint.entries import AttemptEnd, CommitEntry
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.pipeline import Pipeline, sql_settings
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.masking import mask
from airflow_provider_microbatch.runtime.session import pin
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.path_catalog import PathCatalog
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.upkeep.janitor_report import JanitorReport

KEY = BatchKey("live", 0)
SECRET = "hunter2-Ab/9+x=="

SAID = [
    f"cannot connect to jdbc:postgresql://me:{SECRET}@db:5432/shop",
    f"jdbc:mysql://db/shop?user=me&password={SECRET}&useSSL=true",
    f"fs.s3a.secret.key={SECRET}, fs.s3a.endpoint=minio",
    f"spark.hadoop.fs.s3a.access.key: {SECRET}",
    f'{{"password": "{SECRET}", "host": "db"}}',
    f"{{'accessToken': '{SECRET}'}}",
    f"Authorization: Bearer {SECRET}",
    f"authorization=Basic {SECRET}",
    f"sc://host:15002/;token={SECRET};user_id=me",
    f"https://acct.blob.core.windows.net/x?sv=1&sig={SECRET}",
    f"fs.azure.account.key.acct.dfs.core.windows.net={SECRET}",
    f"sfPassword => {SECRET}",
    f'secret = "two words {SECRET}"',
]


@pytest.mark.parametrize("said", SAID)
def test_a_secret_in_an_error_is_hidden_and_the_rest_stays(said: str) -> None:
    hidden = mask(f"before {said} after")
    assert SECRET not in hidden
    assert "hunter2" not in hidden
    assert hidden.startswith("before ")
    assert hidden.endswith(" after")
    assert "***" in hidden
    assert mask(hidden) == hidden


@pytest.mark.parametrize(
    "said",
    [
        "batch live/0 attempt 2 is fenced by attempt 3, which alone may publish",
        "file:///landing/orders/dt=2026-11-22/part-0.json was changed",
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] no column `total`; did you mean `id`? SQLSTATE: 42703",
        "sc://spark:15002 does not answer",
        "see https://spark.apache.org/docs/latest/?a=b#c:d@e",
        'File "/opt/dags/job.py", line 7, in transform',
    ],
)
def test_what_is_no_secret_stays_as_it_is(said: str) -> None:
    assert mask(said) == said


def test_no_error_is_stored_as_it_came(tmp_path: Any) -> None:
    attempts = Attempts(PosixStore(tmp_path))
    for said in SAID:
        attempts.end(KEY, 1, AttemptEnd(state="failed", error=said, ended_ms=1))
        stored = next(tmp_path.rglob("*.end")).read_text()
        assert "hunter2" not in stored
        next(tmp_path.rglob("*.end")).unlink()
        entry = CommitEntry(set_aside=True, failure={"error": said, "ends": {"orders": '{"logOffset":0}'}})
        assert b"hunter2" not in encode_commit(entry)
        assert b'{\\"logOffset\\":0}' in encode_commit(entry)
        report = JanitorReport(location="/c", pipeline="orders", dry_run=False)
        report.add("failed", "live/0 attempt 1", said)
        assert "hunter2" not in str(report.to_dict())
        failure = BatchFailure("transform", said, f"Traceback:\n{said}")
        assert "hunter2" not in f"{failure.report()} {failure}"


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("password", "password"),
        ("sfPassword", "password"),
        ("fs.s3a.secret.key", "password"),
        ("fs.s3a.access.key", "login"),
        ("accessKeyId", "login"),
        ("spark.sql.catalog.lake.token", "password"),
        ("credentialsFile", "extra"),
        ("pem_private_key", "extra"),
    ],
)
def test_an_option_that_looks_like_a_credential_is_refused_with_the_field_to_use(name: str, field: str) -> None:
    makers = [
        lambda: FileSource("/landing", options={name: SECRET}),
        lambda: FileSink("/lake", options={name: SECRET}),
        lambda: TableSink(PathCatalog("/lake"), "orders", options={name: SECRET}),
    ]
    if name.startswith("spark.sql."):
        makers.append(lambda: pipeline(conf={name: SECRET}))
    for make in makers:
        with pytest.raises(DefinitionError, match=rf"looks like a credential.*field '{field}'") as refused:
            make()
        assert SECRET not in str(refused.value)
        assert name in str(refused.value)


def test_a_credential_in_the_value_of_an_option_is_refused() -> None:
    with pytest.raises(DefinitionError, match="the value of 'dbtable' holds") as refused:
        FileSource("/landing", options={"dbtable": f"jdbc:postgresql://me:{SECRET}@db/shop"})
    assert SECRET not in str(refused.value)


def test_ordinary_options_are_taken() -> None:
    FileSource("/landing", options={"multiLine": True, "sep": ";", "timestampFormat": "yyyy-MM-dd HH:mm:ss"})
    FileSink("/lake", options={"compression": "zstd", "parquet.encryption.column.keys": "k1:a,b"})
    pipeline(conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "7"})


def pipeline(**changes: Any) -> Pipeline:
    return Pipeline(
        "orders", checkpoint="/c", sources={"orders": FileSource("/landing")}, sink=FileSink("/lake"), **changes
    )


@pytest.mark.parametrize("key", ["spark.executor.memory", "spark.hadoop.fs.s3a.endpoint", "sql.x", "spark.jars", ""])
def test_a_pipeline_pins_settings_of_spark_sql_only(key: str) -> None:
    with pytest.raises(DefinitionError, match="Give it to the operator") as refused:
        pipeline(conf={key: "the-value"})
    assert "the-value" not in str(refused.value)


def test_what_an_entry_of_the_log_names_beside_is_not_set(caplog: pytest.LogCaptureFixture) -> None:
    conf = {"spark.sql.ansi.enabled": "true", "spark.jars": "/tmp/evil.jar"}
    assert sql_settings(conf) == {"spark.sql.ansi.enabled": "true"}
    assert "spark.jars" in caplog.text
    assert "evil" not in caplog.text


def test_a_setting_that_spark_refuses_is_logged_without_its_value(caplog: pytest.LogCaptureFixture) -> None:
    from pyspark.errors import PySparkException

    class Conf:
        def set(self, key: str, value: str) -> None:
            raise PySparkException(f"The value '{value}' in the config {key!r} is invalid.")

        def get(self, key: str, default: object) -> object:
            return default

    class Session:
        conf = Conf()

    with caplog.at_level(logging.DEBUG):
        pin(Session(), {"spark.x.y": SECRET})  # type: ignore[arg-type]
    assert "spark.x.y" in caplog.text
    assert SECRET not in caplog.text
