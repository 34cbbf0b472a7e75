"""A source of the user's own, in plain Python.

For any system that tells its present position and can be read from one position to another, such as an HTTP API.
Planned without a JVM; read by Spark's driver, or by its executors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from airflow_provider_microbatch.runtime.polling import PollingSource as Polled
from airflow_provider_microbatch.sources import OpenSource, Source, SourceContext


class PollingSource(Polled, Source):
    """Base of the user's class; its methods are described where they travel with it, in
    :class:`airflow_provider_microbatch.runtime.polling.PollingSource`. ::

        @dataclass(frozen=True)
        class Rates(PollingSource):
            url: str
            schema = "id long, rate double"

            def initial_offset(self):
                return 0

            def latest_offset(self, start, limit):
                return requests.get(f"{self.url}/newest", timeout=10).json()["id"]

            def read(self, start, end):
                yield from requests.get(f"{self.url}/rates?after={start}&to={end}", timeout=60).json()

    ``microbatch check-source module:Rates --set url=…`` tries it. Its fields stand in the checkpoint and in Airflow's
    database: no secret belongs there.
    """

    def reads_as(self) -> Mapping[str, str | None]:
        """The schema, and every field: which of them decide about rows only the class knows."""
        fields: Mapping[str, object] = self.to_dict()["arguments"]
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
        return {**texts, "schema": self.schema}

    def open(self, context: SourceContext) -> OpenSource:
        from airflow_provider_microbatch.sources.polling.open import OpenPollingSource

        return OpenPollingSource(self, context)
