"""Find out whether any pipeline of a job has a batch to make."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.execution.fire import FireDecision
from airflow_provider_microbatch.graph.pause import pause_of
from airflow_provider_microbatch.pipeline import Pipeline

log = logging.getLogger(__name__)

Ask = Callable[[Pipeline, int | None], FireDecision]
"""Asks whether a pipeline has work. The second argument is the time at which the pipeline was last asked, milliseconds
since the epoch, UTC; None if it was not."""


class JobWatch:
    """Asks the pipelines of a job in turn, and remembers when each pipeline was asked. Writes nothing.

    A pipeline is not asked while its failed batch has a pause. A pipeline that cannot be asked counts as work only when
    it has been silent for ``retry_seconds``: its task will tell why, and runs that only tell the same would hold up the
    other pipelines.

    :param pipelines: each with its checkpoint.
    :param ask: asks one pipeline.
    :param retry_seconds: the first pause after a failure, in seconds.
    :param waits_since_ms: when the wait began, if earlier processes have looked already, milliseconds since the epoch,
        UTC. Their looks are not remembered, so a pipeline that cannot be asked now counts as silent since then.
    :param was_cleared: the asking run was cleared, and waits for no pause.
    :param clock_ms: returns the time, milliseconds since the epoch, UTC.
    """

    def __init__(
        self,
        pipelines: Sequence[tuple[Pipeline, Checkpoint]],
        *,
        ask: Ask,
        retry_seconds: float,
        waits_since_ms: int | None = None,
        was_cleared: bool = False,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._pipelines = pipelines
        self._ask = ask
        self._retry_seconds = retry_seconds
        self._waits_since_ms = waits_since_ms
        self._was_cleared = was_cleared
        self._clock_ms = clock_ms
        self._searched_ms: dict[str, int] = {}
        self._silent_since_ms: dict[str, int] = {}

    def look(self) -> FireDecision:
        """Ask the pipelines until one has work.

        :return: one decision for all pipelines.
        """
        reasons, complete = [], True
        for pipeline, checkpoint in self._pipelines:
            decision = self._look_at(pipeline, checkpoint)
            reasons.append(f"{pipeline.name}: {decision.reason}")
            if decision.fire:
                return FireDecision(fire=True, reason=reasons[-1])
            complete &= decision.complete
        return FireDecision(fire=False, reason="; ".join(reasons), complete=complete)

    def _look_at(self, pipeline: Pipeline, checkpoint: Checkpoint) -> FireDecision:
        place, asked_ms = checkpoint.location, self._clock_ms()
        try:
            pause = None if self._was_cleared else pause_of(checkpoint, first_seconds=self._retry_seconds)
            if pause is not None:
                return FireDecision(fire=False, reason=str(pause))
            decision = self._ask(pipeline, self._searched_ms.get(place))
        except (MicroBatchError, OSError) as error:
            first_ms = asked_ms if self._waits_since_ms is None else self._waits_since_ms
            since_ms = self._silent_since_ms.setdefault(place, first_ms)
            log.warning("Pipeline %s cannot be asked: %s", pipeline.name, error)
            return FireDecision(fire=asked_ms - since_ms >= self._retry_seconds * 1000, reason=str(error))
        self._silent_since_ms.pop(place, None)
        self._searched_ms[place] = asked_ms
        return decision
