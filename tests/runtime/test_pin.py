"""A batch's settings go to the session: at once where it can be, and what Spark refuses is named."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException

from airflow_provider_microbatch.runtime.session import pin

FIXED = "spark.sql.warehouse.dir"


class Conf:
    """The settings of a session, of which one may be set at start only."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.calls = 0

    def set(self, key: str, value: str) -> None:
        self.calls += 1
        if key == FIXED:
            raise AnalysisException("it cannot be modified")
        self.values[key] = value

    def get(self, key: str, default: str | None = None) -> str | None:
        return self.values.get(key, default)


class ConnectConf(Conf):
    """The same by Spark Connect, whose client can set several in one call."""

    def _set_all(self, configs: dict[str, str], silent: bool) -> None:
        assert not silent
        self.calls += 1
        if FIXED in configs:
            raise AnalysisException("one cannot be modified")
        self.values.update(configs)


class Session:
    def __init__(self, conf: Conf) -> None:
        self.conf = conf


@pytest.mark.parametrize(("conf", "calls"), [(Conf(), 3), (ConnectConf(), 1)])
def test_settings_take_as_few_calls_as_they_can(conf: Conf, calls: int) -> None:
    given = {f"spark.sql.{number}": str(number) for number in range(3)}
    pin(cast("Any", Session(conf)), given)
    assert (conf.values, conf.calls) == (given, calls)


@pytest.mark.parametrize("conf", [Conf(), ConnectConf()])
def test_one_that_is_refused_is_named_and_the_others_are_set(conf: Conf, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        pin(cast("Any", Session(conf)), {"spark.sql.a": "1", FIXED: "/secret", "spark.sql.b": "2"})
    assert conf.values == {"spark.sql.a": "1", "spark.sql.b": "2"}
    assert f"Spark refuses the setting {FIXED}" in caplog.text
    assert "/secret" not in caplog.text
