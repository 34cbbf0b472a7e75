"""The checkpoint of a pipeline: Spark's folders at the root, and beside them the records that Spark has no place for.

| path | what |
| --- | --- |
| ``metadata``, ``offsets/N``, ``commits/N``, ``sources/<name or position>/…`` | Structured Streaming's own |
| ``microbatch/identity`` | the pipeline, the format and the order of the sources |
| ``microbatch/renamed/<n>``, ``microbatch/new/<name>`` | renames of sources, and sources that the user declared new |
| ``microbatch/sources/<name>/…`` | a source's own state |
| ``microbatch/forgotten/<n>`` | conditions of rows to erase, which every computed batch leaves out |
| ``microbatch/intervals/<lane>`` | data intervals that had their run |
| ``microbatch/latest/<lane>/<log>/<N>`` | a hint: the log reaches N |
| ``microbatch/segments/<lane>/<log>/<first>-<last>`` | old entries of a log, a thousand in one file |
| ``microbatch/retained/<lane>/<N>-<name>`` | retention, or compaction, is at work on entries older than N |
| ``attempts/<lane>/<id>/<epoch>``, ``….end`` | attempts and their ends |
| ``microbatch/pipelines/<sha256>`` | the pipeline as attempts ran it, or as a plan that was refused had it |
| ``microbatch/refused/<lane>`` | the plan of the lane that was refused last |
| ``microbatch/in-force/sinks`` | the sink of the run that planned last, and of clears since |
| ``microbatch/tables/<sha256>`` | the id by which a table is recognised |
| ``hooks/<lane>/<id>/<epoch>/<index>.<status>`` | the status that a job status hook was told |
| ``leases/<lane>/<id>-<epoch>-<n>`` | unfinished attempts and their holders' last sign of life |
| ``marks/<sha256>`` | observations of Airflow's processes about the tasks that made attempts |
| ``maintenance/<n>``, ``….decided``, ``….end`` | changes by ``microbatch repair`` and other commands |
| ``maintenance/moved``, ``…/from``, ``…/from.end`` | records of the checkpoint's move: see :mod:`.places` |
| ``repaired/<time>/…`` | files that these commands moved away |
| ``replays/<lane>/<id>/<epoch>``, ``….end`` | requests to run a batch again, and their answers |
| ``resolved/<lane>/<id>/<sha256>`` | the end of a batch that was planned without one, and the attempt that chose it |
| ``subtasks/<lane>/<id>/<sha256>/<name>-<epoch>`` | finished parts of a batch that is not committed |
| ``adopted/<lane>/<id>`` | output of another checkpoint that counts as the batch's |
| ``lanes/<lane>/offsets/N``, ``…/commits/N`` | logs of the lanes beside the live one |
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from shlex import quote

from airflow_provider_microbatch.checkpoint.adoptions import Adoptions
from airflow_provider_microbatch.checkpoint.attempts import Attempts
from airflow_provider_microbatch.checkpoint.codec import (
    FORMATS,
    decode_commit,
    decode_offsets,
    encode_commit,
    encode_offsets,
    version_of,
)
from airflow_provider_microbatch.checkpoint.definitions import Definitions
from airflow_provider_microbatch.checkpoint.deliveries import Deliveries
from airflow_provider_microbatch.checkpoint.entries import CheckpointIdentity, CommitEntry, Offset, OffsetEntry
from airflow_provider_microbatch.checkpoint.forgotten import ForgottenRows
from airflow_provider_microbatch.checkpoint.horizons import Horizons
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity, is_checkpoint_id
from airflow_provider_microbatch.checkpoint.interval_runs import IntervalRuns
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey, check_name, is_lane, span_of
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.checkpoint.lane import Lane, Tail
from airflow_provider_microbatch.checkpoint.leases import Leases
from airflow_provider_microbatch.checkpoint.log import MetadataLog, numbers
from airflow_provider_microbatch.checkpoint.maintenance import MaintenanceLog
from airflow_provider_microbatch.checkpoint.marks import Marks
from airflow_provider_microbatch.checkpoint.records import (
    corrupt,
    decode_record,
    encode_record,
    parse_object,
    to_bytes,
    to_json,
)
from airflow_provider_microbatch.checkpoint.refused_plans import RefusedPlans
from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.checkpoint.resolutions import Resolutions
from airflow_provider_microbatch.checkpoint.sinks_in_force import SinksInForce
from airflow_provider_microbatch.checkpoint.source_names import SourceNames
from airflow_provider_microbatch.checkpoint.subtasks import Subtasks
from airflow_provider_microbatch.exceptions import (
    BrokenLogError,
    CheckpointError,
    CorruptEntryError,
    ForeignCheckpointError,
    SourceCountError,
)
from airflow_provider_microbatch.stores import Store

__all__ = ["TOP", "Checkpoint", "Lane", "Tail"]

log = logging.getLogger(__name__)

_METADATA = "metadata"
_IDENTITY = "microbatch/identity"
_LOGS = frozenset({"offsets", "commits"})

TOP = frozenset(
    {_METADATA, "offsets", "commits", "sources", "microbatch", "attempts", "hooks", "leases", "marks", "maintenance",
     "repaired", "replays", "resolved", "subtasks", "adopted", "lanes"}
)  # fmt: skip
"""The names that a checkpoint has at its top: those of the table above."""


class Checkpoint:
    """Offset log, commit log and attempts of one pipeline. Constructing the object reads and writes nothing.

    :param store: where the checkpoint lies.
    :param sources: the pipeline's source names in order; needed only to read a v1 log that Spark wrote.
    """

    def __init__(self, store: Store, *, sources: Sequence[str] = ()) -> None:
        self._store = store
        self._sources = tuple(sources)
        self._claimed: CheckpointIdentity | None = None
        self._lanes: dict[str, Lane] = {}
        self.adoptions = Adoptions(store.scoped("adopted"))
        self.attempts = Attempts(store.scoped("attempts"))
        self.definitions = Definitions(store.scoped("microbatch/pipelines"))
        self.deliveries = Deliveries(store.scoped("hooks"))
        self.forgotten = ForgottenRows(store.scoped("microbatch/forgotten"))
        self.horizons = Horizons(store.scoped("microbatch/retained"))
        self.leases = Leases(store.scoped("leases"))
        self.marks = Marks(store.scoped("marks"))
        self.intervals = IntervalRuns(store.scoped("microbatch/intervals"))
        self.maintenance = MaintenanceLog(store.scoped("maintenance"))
        self.names = SourceNames(store)
        self.refused_plans = RefusedPlans(store.scoped("microbatch/refused"))
        self.replays = Replays(store.scoped("replays"))
        self.resolutions = Resolutions(store.scoped("resolved"))
        self.sinks_in_force = SinksInForce(store.scoped("microbatch/in-force"))
        self.subtasks = Subtasks(store.scoped("subtasks"))
        self.tables = KnownTables(store.scoped("microbatch/tables"))

    @property
    def keeps_state(self) -> bool:
        """Whether batches of the checkpoint keep state, a pipeline's or a streaming query's."""
        return bool(self._store.list("state"))

    @property
    def for_spark(self) -> str | None:
        """The address that Spark would open; None if Spark cannot open the checkpoint."""
        return self._store.for_spark

    @property
    def location(self) -> str:
        """The address a person would recognise."""
        return self._store.location

    @property
    def offset_log(self) -> MetadataLog[OffsetEntry]:
        """The offset log of the live lane."""
        return self.lane(LIVE).offset_log

    @property
    def commit_log(self) -> MetadataLog[CommitEntry]:
        """The commit log of the live lane."""
        return self.lane(LIVE).commit_log

    def identity(self) -> CheckpointIdentity | None:
        """The pipeline and the format of the checkpoint; None if there is no checkpoint yet. Reads only.

        :raises BrokenLogError: if there are logs but no ``metadata``.
        :raises CorruptEntryError: if ``metadata`` or this package's own entry cannot be read.
        """
        if self._claimed is None:
            query_id = self._query_id()
            if query_id is None:
                self._check_metadata()
                return None
            self._claimed = self._read_claim(query_id)
            if self._claimed is None:
                return CheckpointIdentity(
                    pipeline=None, format=self._spark_format() or "v2", sources=self._sources, query_id=query_id
                )
        return self._claimed

    def unfit(self) -> str | None:
        """Why the checkpoint should not lie at its location, in words; None if no reason is known."""
        return self._store.unfit()

    def claim(self, *, pipeline: str, sources: Sequence[str], format: str) -> CheckpointIdentity:
        """Make the checkpoint this pipeline's, once; a later call only checks.

        A checkpoint keeps the format it was made with, so the format that Spark or an earlier claim chose wins over
        ``format``.

        :param pipeline: name of the pipeline.
        :param sources: its source names; for v1 in the order of the log.
        :param format: ``v1`` or ``v2``, for a new checkpoint.
        :raises CheckpointError: if the checkpoint would be new, and must not be made at its location; nothing is
            written then.
        :raises ForeignCheckpointError: if the checkpoint is another pipeline's.
        :raises SourceCountError: if the checkpoint is v1 and was made for other sources.
        """
        if format not in FORMATS:
            raise CheckpointError(f"checkpoint format {format!r} is unknown; choose one of {', '.join(FORMATS)}.")
        check_name(pipeline, what="pipeline")
        for name in sources:
            check_name(name, what="source")
        found = self.identity()
        unfit = self.unfit()
        if found is None or found.pipeline is None:
            if unfit is not None:
                raise CheckpointError(f"no checkpoint is made: {unfit}")
            kept = self._spark_format() or format
            if kept == "v1":
                self._check_spark_entry(sources)
            # `metadata` first: a crash between the two leaves what Spark leaves, and the next claim completes it.
            self._store.put_if_absent(_METADATA, to_bytes(to_json({"id": str(uuid.uuid4())})))
            self._store.put_if_absent(
                _IDENTITY, encode_record({"pipeline": pipeline, "format": kept, "sources": list(sources)})
            )
            found = self.identity()
            assert found is not None, "it was just written"
        elif unfit is not None:
            # The version that made the checkpoint did not look: to refuse it now would strand the pipeline.
            log.warning("the checkpoint should be moved: %s", unfit)
        if found.pipeline != pipeline:
            raise ForeignCheckpointError(
                f"checkpoint {self.location} belongs to pipeline {found.pipeline!r}, not to {pipeline!r}. Give each "
                "pipeline a checkpoint of its own, or keep the old name."
            )
        if found.format == "v1" and sorted(found.sources) != sorted(sources):
            raise SourceCountError(
                f"There are [{len(found.sources)}] sources in the checkpoint offsets and now there are "
                f"[{len(sources)}] sources requested by the query. Cannot continue. The v1 checkpoint {self.location} "
                f"was made for {list(found.sources)}, the pipeline names {list(sources)}: name the same sources (in "
                "any order), or start a v2 checkpoint."
            )
        return found

    def batch(self, key: BatchKey, entry: OffsetEntry | None = None, data: bytes = b"") -> BatchIdentity:
        """The identity by which the batch is known outside of this checkpoint.

        :param entry: the planned offset entry; None for the place of a batch that is not planned.
        :param data: the entry's bytes.
        :raises CheckpointError: if the checkpoint belongs to no pipeline yet.
        """
        identity = self.identity()
        if identity is None or identity.pipeline is None:
            raise CheckpointError(f"{self.location} belongs to no pipeline yet, so it has no batch.")
        return BatchIdentity(
            checkpoint=identity.query_id,
            pipeline=identity.pipeline,
            key=key,
            digest="" if entry is None else entry.digest(data),
            location=self.location,
            planned_ms=0 if entry is None else entry.batch_timestamp_ms,
        )

    def put_away(self, key: BatchKey, path: str) -> OffsetEntry | None:
        """The offset entry of the batch that a command has put away; None if nothing is there any more.

        :param path: where it has put the entry.
        :raises CorruptEntryError: if it cannot be read.
        """
        data = self._store.get(path)
        if data is None:
            return None
        entry = self._decode_offsets(data, where=f"{self.location}/{path}")
        return self._resolved(key.lane, key.id, entry, data)

    def put_away_commit(self, path: str) -> CommitEntry | None:
        """The same of a commit entry; see :meth:`put_away`."""
        data = self._store.get(path)
        return None if data is None else decode_commit(data, where=f"{self.location}/{path}")

    def lane(self, name: str) -> Lane:
        """The lane of that name; ``live`` is Spark's own folders. Constructing a lane touches nothing. A checkpoint has
        one object for each lane, so all callers share what the lane has seen of its logs."""
        if name not in self._lanes:
            self._lanes[name] = self._make_lane(check_name(name, what="lane"))
        return self._lanes[name]

    def _make_lane(self, name: str) -> Lane:
        store = self._store if name == LIVE else self._store.scoped(f"lanes/{name}")
        hints = self._store.scoped(f"microbatch/latest/{name}")
        segments = self._store.scoped(f"microbatch/segments/{name}")
        return Lane(
            name,
            offset_log=MetadataLog(
                store.scoped("offsets"),
                encode=self._encode_offsets,
                decode=self._decode_offsets,
                complete=partial(self._resolved, name),
                hints=hints.scoped("offsets"),
                segments=segments.scoped("offsets"),
            ),
            commit_log=MetadataLog(
                store.scoped("commits"),
                encode=encode_commit,
                decode=decode_commit,
                hints=hints.scoped("commits"),
                segments=segments.scoped("commits"),
            ),
            check_metadata=self._check_metadata,
        )

    def lanes(self) -> list[str]:
        """All lanes, ``live`` first. A plain file, or a folder without a lane's name, is no lane, and no error either.
        One listing: each interval that ever ran has a lane."""
        return [LIVE, *sorted(name for name in self._store.folders("lanes") if is_lane(name) and name != LIVE)]

    def read_names(self) -> set[str]:
        """Names of the sources that a batch has read from, as the newest entry of each lane says. Reads one entry of
        each lane; where the newest is torn, the newest that is not."""
        return {name for ends in self.newest_ends() for name, end in ends.items() if end is not None}

    def newest_ends(self) -> Iterator[Mapping[str, Offset | None]]:
        """Ends of the newest entry of each lane, read as they are asked for: first those that most likely have all
        sources of today, the newest data interval and the live lane."""
        lanes = self.lanes()[::-1]
        first = [*[lane for lane in lanes if span_of(lane) is not None][:1], LIVE]
        return map(self._newest_readable, [*first, *(lane for lane in lanes if lane not in first)])

    def knows_source(self, name: str) -> bool:
        """Whether a source has, or once had, this name: by a rename, by its log, or by a batch that has read it."""
        identity = self.identity()
        return (
            any(name in rename for rename in self.names.renames())
            or (identity is not None and name in identity.sources)
            or name in self.names.with_log()
            or name in self.read_names()
        )

    def _newest_readable(self, lane: str) -> Mapping[str, Offset | None]:
        log = self.lane(lane).offset_log
        with suppress(CorruptEntryError):
            newest = log.latest()
            return newest[1].ends if newest is not None else {}
        for number in reversed(log.ids()):
            with suppress(CorruptEntryError):
                entry = log.get(number)
                if entry is not None:
                    return entry.ends
        return {}

    def no_lanes(self) -> list[str]:
        """Addresses of files and folders among the lanes that are no lane. An empty folder with a lane's name is not
        among them: it was about to become a lane."""
        names = sorted(self._store.list("lanes"))
        lanes = self.lanes()[1:]
        return [f"{self.location}/lanes/{name}" for name in names if name not in lanes or self._has_no_logs(name)]

    def _has_no_logs(self, name: str) -> bool:
        found = self._store.list(f"lanes/{name}")
        return bool(found) and _LOGS.isdisjoint(found)

    def source_log(self, name: str) -> Store:
        """Spark's log folder of a source: by name in v2, by position in v1.

        :raises CheckpointError: if the checkpoint is v1 and does not know the source.
        """
        check_name(name, what="source")
        identity = self.identity()
        if identity is None or identity.format != "v1":
            return self._store.scoped(f"sources/{name}")
        if name not in identity.sources:
            raise CheckpointError(
                f"the v1 checkpoint {self.location} has no source {name!r}; by position: {list(identity.sources)}."
            )
        return self._store.scoped(f"sources/{identity.sources.index(name)}")

    def source_state(self, name: str) -> Store:
        """The store of a source's own state, beside Spark's folders."""
        return self._store.scoped(f"microbatch/sources/{check_name(name, what='source')}")

    def _query_id(self) -> str | None:
        data = self._store.get(_METADATA)
        if data is None:
            return None
        where = f"{self.location}/{_METADATA}"
        if not data:
            corrupt(where, "empty (zero bytes)")
        query_id = parse_object(data.decode("utf-8", "replace"), where=where).get("id")
        if not is_checkpoint_id(query_id):
            corrupt(where, "not what it should be: it holds no query id")
        return str(query_id)

    def _read_claim(self, query_id: str) -> CheckpointIdentity | None:
        data = self._store.get(_IDENTITY)
        if data is None:
            return None
        where = f"{self.location}/{_IDENTITY}"
        values = decode_record(data, where=where)
        pipeline, kept, sources = (values.get(name) for name in ("pipeline", "format", "sources"))
        if not isinstance(pipeline, str) or kept not in FORMATS or not isinstance(sources, list):
            corrupt(where, "not what it should be: it lacks pipeline, format or sources")
        named = tuple(map(self.names.of, sources))
        return CheckpointIdentity(pipeline=pipeline, format=str(kept), sources=named, query_id=query_id)

    def _spark_format(self) -> str | None:
        """Format of the newest live entry, None without one."""
        newest = max(numbers(self._store.list("offsets")), default=None)
        data = None if newest is None else self._store.get(f"offsets/{newest}")
        return None if data is None else version_of(data, where=f"{self.location}/offsets/{newest}")

    def _check_spark_entry(self, sources: Sequence[str]) -> None:
        """Raise if the newest v1 entry does not fit ``sources``, before anything is written."""
        newest = max(numbers(self._store.list("offsets")), default=None)
        data = None if newest is None else self._store.get(f"offsets/{newest}")
        if data is not None:
            decode_offsets(data, where=f"{self.location}/offsets/{newest}", names=sources)

    def _resolved(self, lane: str, number: int, entry: OffsetEntry, data: bytes) -> OffsetEntry:
        """The entry with the ends that an attempt has chosen, by the present source names."""
        if not entry.late:
            return entry
        key, digest = BatchKey(lane, number), entry.digest(data)
        found = self.resolutions.get(key, digest)
        if found is None:
            return entry
        chosen = {self.names.of(name): end for name, end in found.ends.items()}
        if not set(entry.late) <= set(chosen):
            # A source without a chosen end would end where it begins, and the next batch would read its range again.
            corrupt(self.resolutions.where(key, digest), f"not what it should be: it has ends of {sorted(chosen)} only")
        ends = {name: chosen.get(name, end) if name in entry.late else end for name, end in entry.ends.items()}
        return replace(entry, ends=ends, resolved_by=found.epoch)

    def _check_metadata(self) -> None:
        # Looked at again after the logs: another run may have claimed and planned between the first two looks.
        if (
            self._store.get(_METADATA) is None
            and (numbers(self._store.list("offsets")) or numbers(self._store.list("commits")))
            and self._store.get(_METADATA) is None
        ):
            raise BrokenLogError(
                f"{self.location} has logs but no file {_METADATA!r}, without which Spark refuses it. Restore it "
                f"from a backup, or have `microbatch repair {quote(self.location)}` write it anew."
            )

    def _encode_offsets(self, entry: OffsetEntry) -> bytes:
        identity = self.identity()
        if identity is None:
            raise CheckpointError(f"{self.location} belongs to no pipeline yet; claim it before planning a batch.")
        return encode_offsets(entry, version=identity.format, names=identity.sources)

    def _decode_offsets(self, data: bytes, *, where: str) -> OffsetEntry:
        identity = self.identity()
        entry = decode_offsets(data, where=where, names=identity.sources if identity else self._sources)
        return self.names.entry(entry)
