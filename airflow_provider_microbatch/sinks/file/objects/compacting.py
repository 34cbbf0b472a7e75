"""Joins the small files of each batch of a table in a bucket.

The joined files lie in a folder of their own, ``_batches/lane=live/batch_id=7/<checkpoint>.2.<number>/``, with the rest
of the batch's files and a manifest of the same attempt of the same plan. They are published as an attempt is, by one
put of the manifest for readers, on the condition that it is unchanged since before the first of them was written.

A mark tells of the folder before its first object is there. Who removes a folder that was never published changes the
manifest for readers first, so that a compaction that sleeps, and puts later, is refused.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.layout import MANIFEST
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.sinks.compaction import CHANGED, Compacted, Compaction, Joining, pack, tried
from airflow_provider_microbatch.sinks.file.objects.layout import Written
from airflow_provider_microbatch.sinks.file.objects.published import Manifests, Published
from airflow_provider_microbatch.sinks.file.objects.stages import Stages
from airflow_provider_microbatch.sinks.file.report import differing
from airflow_provider_microbatch.stores.object_store import ObjectStore


@dataclass(frozen=True)
class ObjectCompacting:
    """:param store: store of the table's objects.
    :param manifests: manifests for readers.
    :param stages: objects of attempts.
    :param joining: how files of the table's format are joined.
    :param manifest_of: the manifest of written output; None if it is gone.
    :param data_of: the files of written output that readers may be shown, with their sizes.
    """

    store: ObjectStore
    manifests: Manifests
    stages: Stages
    joining: Joining
    manifest_of: Callable[[Written], Manifest | None]
    data_of: Callable[[Written, Manifest], Mapping[str, int]]

    def compact(self, wanted: Compaction, batches: Iterable[BatchKey]) -> Compacted:
        """Compact the batches, one after the other."""
        done = Compacted()
        for key in batches:
            tried(key, done, partial(self._batch, key, wanted, done))
        return done

    def _batch(self, key: BatchKey, wanted: Compaction, done: Compacted) -> None:
        before = self.manifests.look(key)
        if before.written is None:
            return
        found = self.manifest_of(before.written)
        why = "its own record is gone: `microbatch check --table`" if found is None else wanted.refusal(found)
        if found is None or why is not None:
            done.leave(key, why or "")
            return
        small = [(name, size) for name, size in sorted(found.files.items()) if size < wanted.target_bytes]
        groups = pack(small, wanted.target_bytes)
        if not groups:
            return
        if wanted.dry_run:
            sizes = [sum(found.files[name] for name in group) for group in groups]
            done.join([key], [found.files[name] for group in groups for name in group], sizes)
            return
        damage = differing(self.data_of(before.written, found), found)
        if damage is not None:
            done.leave(key, f"not what was published ({damage}): `microbatch check --table` has the way on")
            return
        with tempfile.TemporaryDirectory(prefix="microbatch-") as folder:
            groups = self._fetched(before.written, small, wanted.target_bytes, Path(folder))
            if groups:
                self._replace(before, found, groups, Path(folder), wanted, done)

    def _fetched(
        self, written: Written, small: Sequence[tuple[str, int]], target_bytes: int, folder: Path
    ) -> list[list[str]]:
        """Copy small files here. :return: names of those to be joined: files of one kind."""
        kinds: dict[object, list[tuple[str, int]]] = {}
        for name, size in small:
            data = self.store.get(f"{written.folder}/{name}") if "/" not in name else None
            if data is None or len(data) != size:
                raise SinkError(f"{written.folder}/{name} is gone, or was changed")
            (folder / name).write_bytes(data)
            kinds.setdefault(self.joining.kind(folder / name), []).append((name, size))
        return [group for files in kinds.values() for group in pack(files, target_bytes)]

    def _replace(
        self,
        before: Published,
        found: Manifest,
        groups: Sequence[Sequence[str]],
        folder: Path,
        wanted: Compaction,
        done: Compacted,
    ) -> None:
        """Write the batch's files as they are to be, and publish them, if the batch is still what was looked at."""
        assert before.written is not None
        joined = dataclasses.replace(before.written, joined=uuid.uuid4().hex)
        mark = joined.replaced_mark(wanted.checkpoint)
        self.store.put_if_absent(mark, b"")
        try:
            after = self._write(before.written, joined, found, groups, folder)
            why = wanted.refusal(found)
            if why is not None:
                raise SinkError(why)
            told = differing(self.data_of(joined, after), after)
            if told is not None:
                raise SinkError(f"{joined.folder} is not what was written there ({told})")
            # In advance, so that the old files are found even after a crash.
            self.store.put_if_absent(before.written.replaced_mark(wanted.checkpoint), b"")
        except BaseException:
            self._give_up(joined, mark)
            raise
        if not self.manifests.put(before, joined, sorted(after.files)):
            done.leave(found.key, CHANGED)  # the janitor removes what was written: here nobody knows who has seen it
            return
        self.store.delete_many([mark])
        gone = found.files.keys() - after.files.keys()
        new = after.files.keys() - found.files.keys()
        done.join([found.key], [found.files[name] for name in gone], [after.files[name] for name in new])

    def _write(
        self, old: Written, new: Written, found: Manifest, groups: Sequence[Sequence[str]], folder: Path
    ) -> Manifest:
        """Write the joined files, the others as they are, and a manifest that names them."""
        gone = {name for group in groups for name in group}
        files = {name: size for name, size in found.files.items() if name not in gone}
        hidden = [path for path in self.stages.objects(old) if path.startswith("_")]
        for path in (*files, *(path for path in hidden if not path.startswith(f"{MANIFEST}/"))):
            self.stages.copy(f"{old.folder}/{path}", f"{new.folder}/{path}")
        for number, group in enumerate(groups):
            name = f"part-{number:05}-joined-{uuid.uuid4()}.{group[0].partition('.')[2]}"
            self.joining.join([folder / one for one in group], folder / name)
            data = (folder / name).read_bytes()
            self.store.put_if_absent(f"{new.folder}/{name}", data)
            files[name] = len(data)
        lines: list[dict[str, Any]] = [{"result": dict(found.result)}]
        lines += [{"file": name, "bytes": size} for name, size in sorted(files.items())]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        self.store.put_if_absent(f"{new.folder}/{MANIFEST}/part-00000.txt", text.encode())
        return dataclasses.replace(found, files=files)

    def _give_up(self, joined: Written, mark: str) -> None:
        """Remove what was written and is certain never to be published."""
        self.stages.remove(joined)
        self.store.delete_many([mark])
