"""Which statements of a transform would make a name that all attempts on a server share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_provider_microbatch.engines.spark_connect.names import NamesOfAll, SharedNameError

IN_MEMORY = {"spark.sql.catalogImplementation": "in-memory", "spark.sql.catalog.lake": "a.Catalog"}


def names(conf: dict[str, str] = IN_MEMORY, *, current: str = "spark_catalog") -> NamesOfAll:
    made = NamesOfAll()
    catalog = SimpleNamespace(currentCatalog=lambda: current)
    made.catalog_of(SimpleNamespace(conf=SimpleNamespace(get=conf.get), catalog=catalog))
    return made


REFUSED = [
    "CREATE GLOBAL TEMPORARY VIEW x AS SELECT 1",
    "create or replace global temp view x as select 1",
    "/* why */ -- so\n CACHE TABLE x",
    "CACHE LAZY TABLE x AS SELECT 1",
    "CREATE TABLE x (id INT)",
    "CREATE OR REPLACE TABLE `a b`.`x``y` AS SELECT 1",
    "CREATE EXTERNAL TABLE IF NOT EXISTS spark_catalog.default.x (id INT)",
    "CREATE VIEW default . x AS SELECT 1",
    "CREATE FUNCTION x AS 'a.B'",
    "CREATE SCHEMA x",
    "CREATE DATABASE IF NOT EXISTS lake",
    "BEGIN SELECT 1; CREATE TABLE x (id INT); END",
    "EXECUTE IMMEDIATE 'CACHE TABLE x'",
]
ALLOWED = [
    "SELECT 'CREATE TABLE x' AS text -- CACHE TABLE x",
    "CREATE TEMPORARY VIEW x AS SELECT 1",
    "CREATE OR REPLACE TEMP VIEW x AS SELECT 'CACHE TABLE y'",
    "CREATE TEMPORARY FUNCTION x AS 'a.B'",
    "CREATE TABLE lake.sales.x (id INT)",
    "/* CREATE TABLE x */ WITH cache AS (SELECT 1) SELECT * FROM cache",
    "CLEAR CACHE",
    "INSERT INTO lake.x SELECT 1",
]


@pytest.mark.parametrize("query", REFUSED)
def test_a_name_of_all_is_refused(query: str) -> None:
    with pytest.raises(SharedNameError, match="Use "):
        names()._check_sql(query)


@pytest.mark.parametrize("query", ALLOWED)
def test_what_is_the_attempts_own_or_no_part_of_the_server_is_allowed(query: str) -> None:
    names()._check_sql(query)


def test_tables_of_a_metastore_and_of_a_current_catalog_of_its_own_are_allowed() -> None:
    for query in REFUSED[4:11]:
        names({"spark.sql.catalogImplementation": "hive"})._check_sql(query)
    names(current="lake")._check_sql("CREATE TABLE x (id INT)")
    with pytest.raises(SharedNameError):
        names(current="lake")._check_sql("CREATE TABLE spark_catalog.default.x (id INT)")
