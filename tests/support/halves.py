"""A file source whose every range has several splits: each file in two halves, by its lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.sources import OpenSource, SourceContext, Split
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.open import OpenFileSource

_READER = "tests.support.halves_reader:read"


@dataclass(frozen=True)
class HalvedFiles(FileSource):
    """As the file source in all else."""

    def open(self, context: SourceContext) -> OpenSource:
        return OpenHalves(self, context)


class OpenHalves(OpenFileSource):
    """Its reader is told which half of the lines it is to read."""

    def splits_of(self, start: Offset | None, end: Offset | None) -> Sequence[Split]:
        whole = super().splits_of(start, end)
        if start == end:
            return whole
        return [
            Split(id=f"{split.id} {half}", read=replace(split.read, reader=_READER, arguments=arguments))
            for split in whole
            for half in (0, 1)
            for arguments in [{**split.read.arguments, "half": half}]
        ]
