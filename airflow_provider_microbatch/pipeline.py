"""A pipeline: named sources, a transform and its sinks, with one checkpoint. The unit of planning and of failure."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from itertools import combinations
from typing import cast

from airflow_provider_microbatch.checkpoint.key import LIVE, check_name
from airflow_provider_microbatch.checkpoint.leases import LEASE_SECONDS
from airflow_provider_microbatch.definition import Definition, is_read_back
from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError
from airflow_provider_microbatch.expectations import Expect, check_most, checked_expect, checks_of
from airflow_provider_microbatch.flow import PipelineFlow, check_function
from airflow_provider_microbatch.job_status import JobStatusHook
from airflow_provider_microbatch.runtime.checks import Checks, Forgotten
from airflow_provider_microbatch.runtime.masking import refusal
from airflow_provider_microbatch.runtime.session import loses_rows
from airflow_provider_microbatch.runtime.streaming import STATE_SETTINGS
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.dead_letters import LETTERS, with_letters
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.sources import Source
from airflow_provider_microbatch.stores.location import open_store

log = logging.getLogger(__name__)

INTERVAL = "interval"
"""``plan`` of pipelines that run batches per data interval."""

SQL = "spark.sql."
"""Prefix of the settings that a batch may pin: settings in an entry of the log are set on the session."""

SHORTEST_LEASE = 5.0
"""Seconds. A shorter lease would end in any pause of the machine."""

SKIP, REPLAY = "skip", "replay"
"""Values of ``on_overlap``."""

_NONE = cast(Sink, None)
"""Stands in the field ``sink`` where ``sinks`` are given, until the sinks are put there."""


def sql_settings(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings of an entry of the log that a batch may pin. Any other setting would let the entry choose what Spark
    loads and whom Spark trusts."""
    others = sorted(key for key in conf if not key.startswith(SQL))
    if others:
        log.warning("Settings that are none of Spark SQL are not set by the batch: %s", ", ".join(others))
    return {key: value for key, value in conf.items() if key.startswith(SQL)}


def _of_several(sinks: Mapping[str, Sink], *, where: str) -> Sinks:
    try:
        return Sinks(sinks)
    except DefinitionError as error:
        raise DefinitionError(f"{where}: {error}") from error


def _with_letters(sink: Sink, letters: object, *, where: str) -> Sink:
    if not isinstance(letters, Sink):
        raise DefinitionError(f"{where}: dead_letters is a {type(letters).__name__}, not a Sink.")
    try:
        return with_letters(sink, letters)
    except DefinitionError as error:
        raise DefinitionError(f"{where}: {error}") from error


@dataclass(frozen=True)
class Pipeline(Definition):
    """A pipeline, as the user writes it down. Constructing a pipeline touches no file, no connection and no Variable.

    :param name: name of the pipeline; recorded in the checkpoint, which refuses any other pipeline.
    :param checkpoint: where offset log, commit log and attempts lie: a local path, a ``file:`` URL, or
        ``sql://conn_id/schema/prefix``.
    :param sources: the sources by name. The name is the identity of a source: tell the checkpoint of a rename.
    :param sink: where batches are published.
    :param sinks: several sinks by name, in place of ``sink``: the transform returns a dict with a frame for each sink.
        The sinks are published one by one in this order, and a batch is committed when all sinks contain it.
    :param expect: by the condition (in Spark SQL), the action for rows of the result that do not meet the condition:
        ``drop``, ``fail`` (the batch fails) or ``dead_letter``. A row for which the condition is null does not meet it.
        With ``sinks`` one such dict for each sink, by name. ``docs/dead-letters.md``.
    :param dead_letters: the sink of the rows that an expectation sends to dead letters, or that do not parse; staged,
        published and committed with the batch.
    :param max_dead_letters: the most dead letters of a batch, as a count or as a share of its rows (``0.05``); a batch
        with more of them fails.
    :param transform: ``path/to/file.py:function``, relative to the DAG's bundle; gets a ``batch``, returns a DataFrame.
        None passes a single source through as it is; several sources need a transform, given here or by
        ``@task.micro_batch``. A pipeline of a job graph has a flow of several functions.
    :param py_files: further Python files or zips that the transform imports, relative to the DAG's bundle.
    :param conf: SQL settings that change results (``spark.sql.…``, and no other); pinned in every offset log entry and
        set again by a replay.
    :param no_data_batches: run a batch without new data when the previous batch asked for such a batch
        (Spark's ``spark.sql.streaming.noDataMicroBatches.enabled``).
    :param checkpoint_format: ``v2`` (sources by name; Spark 4.2 and newer read it) or ``v1`` (by position; every
        Spark reads it). Only looked at when the checkpoint is made.
    :param min_batches_to_retain: entries that the logs keep (Spark's ``minBatchesToRetain``); older batches cannot be
        replayed. None keeps all.
    :param on_failure: what becomes of a batch that fails again and again: ``fail`` (the batch stays planned, every run
        tries the batch again, and the pipeline stands still until it succeeds) or ``set_aside`` (the pipeline goes on
        without the batch; the batch is listed as set aside, and a clear of its task runs it).
    :param set_aside_after: failed attempts after which a batch is set aside. An attempt counts if its transform failed,
        or if its data could not be read or computed with. An attempt does not count if it was stopped or overtaken, or
        if its cluster was down.
    :param set_aside_after_dead: attempts that died (process or Spark killed) after which a batch is set aside; None for
        never. Dead attempts have a count of their own, as machines die for other reasons than a batch too.
    :param target_seconds: how long Spark should work on a batch: the size of a batch follows the measured rate, within
        the limits of the sources. With None only those limits hold.
    :param plan: ``live``: a run reads what is new; ``interval``: each run reads the data interval that Airflow gives
        the run, by the clocks of the sources, in a lane of its own. With ``stateful`` the intervals are independent.
    :param lookback: with ``plan="interval"``, how long (seconds) before its interval a run looks for late data. Late
        data is data that no batch has read, of intervals that had their run, or from before the DAG's ``start_date``;
        where no other run of the DAG is on its way, all data that no batch has read.
    :param on_overlap: what a run does about the batches that have read data of its interval before: ``skip`` leaves
        these batches as they are, ``replay`` runs them again. Data that no batch has read is read in both cases.
    :param lease_seconds: how long an attempt counts as alive after the last sign of its process, which gives a sign at
        each third of this time. The batch of an attempt that dies with no retry left waits so long for the next run; a
        process that cannot write to the checkpoint for so long is taken for dead.
    :param split_wise: transform and write each split of the only source (a file, a block of a log) by itself, so that
        the next attempt does not repeat the splits that a failed attempt has finished. Only for a transform that makes
        its rows of each row alone: a join, a grouping or an order would hold within a split only. The sink must be able
        to take over finished output (``FileSink``); for any other sink a batch is run as a whole.
    :param stateful: the transform gets streams (``batch.sources``) and returns a stream, whose aggregations,
        deduplication and joins keep their state from batch to batch, as in a streaming query of Spark's own; with
        ``plan="interval"`` within each interval alone. ``docs/state.md``.
    :param output_mode: the rows that a batch of a stateful pipeline has of an aggregation: ``append``, rows that are
        final by the watermark; ``update``, rows that have changed.
    :param hooks: told, in this order, when an attempt is created and how it ended; after the hooks of the sink.
    :raises DefinitionError: for a wrong type or value, naming the field; if a source would read what is written to the
        checkpoint, to the sink or to an archive, or gives up what another source could read.
    """

    name: str
    _: KW_ONLY
    checkpoint: str
    sources: Mapping[str, Source]
    sink: Sink = _NONE
    sinks: InitVar[Mapping[str, Sink] | None] = None
    expect: Expect = field(default_factory=dict)
    dead_letters: InitVar[Sink | None] = None
    max_dead_letters: float | None = None
    transform: str | PipelineFlow | None = None
    py_files: Sequence[str] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    no_data_batches: bool = True
    checkpoint_format: str = "v2"
    min_batches_to_retain: int | None = None
    target_seconds: float | None = None
    plan: str = LIVE
    lookback: float | None = None
    on_overlap: str = SKIP
    on_failure: str = "fail"
    set_aside_after: int = 3
    set_aside_after_dead: int | None = 10
    lease_seconds: float = LEASE_SECONDS
    split_wise: bool = False
    stateful: bool = False
    output_mode: str = "append"
    hooks: Sequence[JobStatusHook] = ()

    def __post_init__(self, sinks: Mapping[str, Sink] | None, dead_letters: Sink | None) -> None:
        check_name(self.name, what="pipeline")
        where = f"pipeline {self.name!r}"
        if sinks is not None:
            given: object = self.sink
            if given is not None:
                raise DefinitionError(f"{where}: give it sink=… or sinks={{…}}, not both.")
            object.__setattr__(self, "sink", _of_several(sinks, where=where))
        if not isinstance(self.checkpoint, str) or not self.checkpoint:
            raise DefinitionError(f"{where}: checkpoint must be a path or URL, not {self.checkpoint!r}.")
        try:
            open_store(self.checkpoint)
        except CheckpointError as error:
            raise DefinitionError(f"{where}: {error}") from error
        if not isinstance(self.sources, Mapping) or not self.sources:
            raise DefinitionError(f"{where}: sources must be a dict of at least one name and source.")
        for name, source in self.sources.items():
            check_name(name, what=f"{where}: source")
            if not isinstance(source, Source):
                raise DefinitionError(f"{where}: source {name!r} is a {type(source).__name__}, not a Source.")
        if not isinstance(self.sink, Sink):
            raise DefinitionError(
                f"{where}: sink is a {type(self.sink).__name__}, not a Sink. Several of them are sinks={{…}}."
            )
        if dead_letters is not None:
            object.__setattr__(self, "sink", _with_letters(self.sink, dead_letters, where=where))
        has_letters = self.sink.dead_letters is not None
        checked_expect(self.expect, sinks=self.sink.names, has_letters=has_letters, where=where)
        check_most(self.max_dead_letters, has_letters=has_letters, where=where)
        self._check_refusing(where)
        if isinstance(self.transform, PipelineFlow):
            self.transform.check(sources=self.sources, sinks=self.sink.names, where=where)
        elif self.transform is not None:
            check_function(self.transform, where=where)
        if isinstance(self.py_files, str):
            raise DefinitionError(f"{where}: py_files must be a list of paths, not one string.")
        object.__setattr__(self, "py_files", tuple(self.py_files))
        if self.checkpoint_format not in ("v1", "v2"):
            raise DefinitionError(f"{where}: checkpoint_format {self.checkpoint_format!r} is neither 'v1' nor 'v2'.")
        for key, value in self.conf.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise DefinitionError(f"{where}: conf {key!r} must be text on both sides.")
            if is_read_back():
                continue
            if not key.startswith(SQL):
                raise DefinitionError(
                    f"{where}: conf {key!r} is no setting of Spark SQL ({SQL}…), and only those are pinned with a "
                    "batch. Give it to the operator: conf={…}."
                )
            refused = refusal(key, value) or loses_rows(key, value)
            if refused is not None:
                raise DefinitionError(f"{where}: conf: {refused}")
        sink = self.sink.of_pipeline(self.name)
        object.__setattr__(self, "sink", sink)
        if not is_read_back():
            self._check_apart(where)
        # Each kind of the sink's own hooks is there once, also in a pipeline that was read back or made by `replace`.
        brought = tuple(sink.hooks())
        kinds = tuple({type(hook) for hook in brought})
        given = tuple(hook for hook in self.hooks if not isinstance(hook, kinds))
        object.__setattr__(self, "hooks", (*brought, *given))
        for hook in self.hooks:
            if not isinstance(hook, JobStatusHook):
                raise DefinitionError(f"{where}: hook {hook!r} is a {type(hook).__name__}, not a JobStatusHook.")
        if self.plan not in (LIVE, INTERVAL):
            raise DefinitionError(f"{where}: plan must be {LIVE!r} or {INTERVAL!r}, not {self.plan!r}.")
        for name, source in self.sources.items() if self.plan == INTERVAL and not is_read_back() else ():
            if (why := source.refuses_intervals) is not None:
                raise DefinitionError(f"{where}: plan={INTERVAL!r} reads data intervals, and source {name!r} {why}.")
        if self.on_overlap not in (SKIP, REPLAY):
            raise DefinitionError(f"{where}: on_overlap must be {SKIP!r} or {REPLAY!r}, not {self.on_overlap!r}.")
        self._check_lookback(where)
        target: object = self.target_seconds
        if target is not None and (not isinstance(target, (int, float)) or isinstance(target, bool) or not target > 0):
            raise DefinitionError(f"{where}: target_seconds must be None or a number above 0, not {target!r}.")
        for name, source in self.sources.items():
            refused = None if target is None or is_read_back() else source.refuses_limits
            if refused is not None:
                raise DefinitionError(f"{where}: target_seconds limits source {name!r}: {refused}. Leave out one.")
        if not isinstance(self.split_wise, bool):
            raise DefinitionError(f"{where}: split_wise must be True or False, not {self.split_wise!r}.")
        if self.split_wise and len(self.sources) > 1 and not is_read_back():
            raise DefinitionError(
                f"{where}: split_wise=True transforms each split by itself, and with sources "
                f"{', '.join(map(repr, self.sources))} a split of one would see no row of the others. Leave it out, or "
                "give the pipeline one source."
            )
        self._check_stateful(where)
        if self.on_failure not in ("fail", "set_aside"):
            raise DefinitionError(f"{where}: on_failure {self.on_failure!r} is neither 'fail' nor 'set_aside'.")
        for name, after in (
            ("after", self.set_aside_after),
            ("after_dead", 1 if self.set_aside_after_dead is None else self.set_aside_after_dead),
        ):
            if not isinstance(after, int) or isinstance(after, bool) or after < 1:
                raise DefinitionError(f"{where}: set_aside_{name} must be a number from 1 on, not {after!r}.")
        lease: object = self.lease_seconds
        if not isinstance(lease, (int, float)) or isinstance(lease, bool) or not SHORTEST_LEASE <= lease < float("inf"):
            raise DefinitionError(
                f"{where}: lease_seconds must be a number of seconds from {SHORTEST_LEASE:.0f} on, not {lease!r}."
            )
        kept = self.min_batches_to_retain
        if kept is not None and (not isinstance(kept, int) or isinstance(kept, bool) or kept < 2):
            raise DefinitionError(f"{where}: min_batches_to_retain must be None or 2 and more, not {kept!r}.")

    def _check_apart(self, where: str) -> None:
        """Check that no source reads what the pipeline writes, as its output would then grow in every run; that readers
        of the table come upon neither the checkpoint nor an archive; and that no source gives up what another source
        may not have read yet."""
        written = [("checkpoint", open_store(self.checkpoint).location)]
        for name, source in self.sources.items():
            if source.gives_up_to is not None:
                written.append((f"archive of source {name!r}", source.gives_up_to))
        for what, location in written:
            shows = next((table for table in self.sink.tables if table.would_show(location)), None)
            if shows is not None:
                raise DefinitionError(
                    f"{where}: the {what} at {location!r} lies in the table {shows.location()!r}, and who reads "
                    "that comes upon it, or a batch that replaces the table takes it away. Put it beside the table."
                )
        written += [("sink", table.location()) for table in self.sink.tables]
        for name, source in self.sources.items():
            for what, location in written:
                if source.would_read(location):
                    raise DefinitionError(
                        f"{where}: source {name!r} reads {source.location()!r}, and with it the {what} at "
                        f"{location!r}: what is written there would come back as data. Put it where the source does "
                        "not look (a file source enters no folder whose name begins with '_')."
                    )
        for (name, source), (second, other) in combinations(self.sources.items(), 2):
            refused = source.refuses_beside(other) or other.refuses_beside(source)
            if refused is not None:
                raise DefinitionError(f"{where}: sources {name!r} and {second!r} {refused}")
            if (source.gives_up or other.gives_up) and (source.shares_with(other) or other.shares_with(source)):
                giving, left = (name, second) if source.gives_up else (second, name)
                raise DefinitionError(
                    f"{where}: source {giving!r} ({self.sources[giving].location()!r}) gives up what it has read "
                    f"(clean_source), and source {left!r} ({self.sources[left].location()!r}) could read some of the "
                    "same later, or not at all. Let their paths have nothing in common, or clean up elsewhere."
                )

    def checks(self, forgotten: Sequence[Forgotten] = ()) -> Checks | None:
        """The checks that keep rows out of the tables, in the form that a Spark job takes; None if all rows go in.

        :param forgotten: the rows that were asked to be erased.
        """
        letters = None if self.sink.dead_letters is None else LETTERS
        expect = checked_expect(self.expect, sinks=self.sink.names, has_letters=letters is not None, where=self.name)
        return checks_of(expect, letters=letters, most=self.max_dead_letters, forgotten=forgotten)

    def _check_refusing(self, where: str) -> None:
        if is_read_back() or not (self.expect or self.sink.dead_letters):
            return
        beside = {"stateful=True": self.stateful, "split_wise=True": self.split_wise}
        for what, is_so in beside.items():
            if is_so:
                raise DefinitionError(
                    f"{where}: expect and dead_letters do not go with {what} yet: a row that is refused is found by "
                    "writing the batch's rows as a whole. Leave out one, or filter in the transform."
                )
        for name, source in self.sources.items() if self.sink.dead_letters is not None else ():
            if (why := source.refuses_dead_letters) is not None:
                raise DefinitionError(f"{where}: dead_letters gets what does not parse, and source {name!r} {why}.")

    def _check_stateful(self, where: str) -> None:
        if self.output_mode not in ("append", "update"):
            raise DefinitionError(f"{where}: output_mode {self.output_mode!r} is neither 'append' nor 'update'.")
        if not isinstance(self.stateful, bool):
            raise DefinitionError(f"{where}: stateful must be True or False, not {self.stateful!r}.")
        if not self.stateful or is_read_back():
            return
        for name, source in self.sources.items():
            if (why := source.refuses_streams) is not None:
                raise DefinitionError(
                    f"{where}: stateful=True reads sources as streams, and source {name!r} ({source.location()!r}) "
                    f"cannot be: {why}."
                )
        for key, value in self.conf.items():
            if key in STATE_SETTINGS and value != STATE_SETTINGS[key]:
                raise DefinitionError(
                    f"{where}: conf {key!r} is {value!r}, and with stateful=True it is {STATE_SETTINGS[key]!r}: "
                    "attempts of a batch would overwrite each other's state, or state would be read as what it is not. "
                    "Leave it out."
                )
        beside = {
            "no_data_batches=False and plan='interval' (behind an interval's batch no other comes that would tell what "
            "waits for its watermark)": self.plan == INTERVAL and not self.no_data_batches,
            "split_wise=True (a split would see the state of none)": self.split_wise,
            "several sinks (the batch's rows come out of the query once)": bool(self.sink.names),
            "on_failure='set_aside' (the batches behind would go on from state that never was)": (
                self.on_failure == "set_aside"
            ),
            "a job's flow as transform": isinstance(self.transform, PipelineFlow),
        }
        for what, is_so in beside.items():
            if is_so:
                raise DefinitionError(f"{where}: stateful=True does not go with {what}. Leave out one.")

    def _check_lookback(self, where: str) -> None:
        lookback = self.lookback
        if lookback is None:
            return
        if not isinstance(lookback, (int, float)) or isinstance(lookback, bool) or not 0 < lookback < float("inf"):
            raise DefinitionError(
                f"{where}: lookback must be a number of seconds above 0, or None for none; not {lookback!r}."
            )
        if self.plan != INTERVAL:
            raise DefinitionError(
                f"{where}: lookback={lookback!r} goes with plan={INTERVAL!r} only; live batches read all that is new, "
                "however old it is."
            )
