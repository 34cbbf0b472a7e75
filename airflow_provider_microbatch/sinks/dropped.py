"""Tables of which a server tells itself that there are none: one that cannot be asked may be away, and come back."""

from __future__ import annotations

from abc import abstractmethod

from airflow_provider_microbatch.sinks import OpenSink


class TellsDropped(OpenSink):
    """A table of such a server."""

    @abstractmethod
    def was_dropped(self) -> bool:
        """Whether the server answers that it has no table of that name. For ``microbatch check --table``.

        :raises SinkError: if it does not answer.
        """
