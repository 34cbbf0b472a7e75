"""Statements through the real spark-submit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_microbatch.engines.submit_statements import SubmitStatements
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.staging.statements import StatementError, Statements


@pytest.mark.spark
@pytest.mark.usefixtures("spark_default")
def test_rows_come_back_until_a_statement_is_refused(tmp_path: Path) -> None:
    statements = SubmitStatements(conf={"spark.sql.warehouse.dir": str(tmp_path / "warehouse of mine")})
    assert Statements.from_dict(json.loads(json.dumps(statements.to_dict()))) == statements
    made = statements.run(["SET spark.sql.warehouse.dir", "SELECT 'it\\'s ü' AS text, DATE'2026-01-02' AS day"])
    assert made[0][0]["value"].endswith("warehouse of mine")
    assert made[1] == [{"text": "it's ü", "day": "2026-01-02"}]
    with pytest.raises(StatementError, match="SELECT 1 FROM nothing") as refused:
        statements.run(["CREATE TABLE made (id INT) USING json", "SELECT 1 FROM nothing", "DROP TABLE made"])
    assert refused.value.condition == "TABLE_OR_VIEW_NOT_FOUND"


def test_a_connection_that_is_not_there_is_named() -> None:
    with pytest.raises(StatementError, match="no_such_spark"):
        SubmitStatements("no_such_spark").run(["SELECT 1"])


def test_bad_arguments_are_named_where_they_are_written() -> None:
    for arguments in ({"conn_id": ""}, {"conf": {"spark.x": 1}}):
        with pytest.raises(DefinitionError, match="SubmitStatements"):
            SubmitStatements(**arguments)  # type: ignore[arg-type]
