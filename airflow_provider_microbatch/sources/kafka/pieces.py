"""Sets of offsets: any number of pieces per partition, each from an offset up to another, which is excluded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Self

from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.kafka.cluster import Partition, Position, named
from airflow_provider_microbatch.sources.pieces import Piece, joined, without


@dataclass(frozen=True)
class Pieces:
    """:param of: the pieces by partition: in order, not touching each other, none empty; no partition without one."""

    of: Mapping[Partition, tuple[Piece, ...]] = field(default_factory=dict)

    @classmethod
    def made(cls, found: Iterable[tuple[Partition, Piece]]) -> Self:
        """Build the set from pieces in any order, which may overlap."""
        by_partition: dict[Partition, list[Piece]] = {}
        for partition, piece in sorted(found):
            by_partition.setdefault(partition, []).append(piece)
        whole = ((partition, joined(pieces)) for partition, pieces in by_partition.items())
        return cls({partition: pieces for partition, pieces in whole if pieces})

    @classmethod
    def between(cls, start: Position, end: Position) -> Self:
        """All offsets from one position up to another; none of partitions that only one of them has."""
        return cls.made((one, (start[one], end[one])) for one in end if one in start)

    def __iter__(self) -> Iterator[tuple[Partition, Piece]]:
        return ((partition, piece) for partition, pieces in self.of.items() for piece in pieces)

    def __bool__(self) -> bool:
        return bool(self.of)

    @property
    def count(self) -> int:
        """Number of offsets."""
        return sum(end - start for _, (start, end) in self)

    def in_words(self) -> str:
        """For people; of many, only the first."""
        texts = [f"{named(one)} {start} to {end - 1}" for one, (start, end) in self]
        more = f" and {len(texts) - 5} more" if len(texts) > 5 else ""
        return f"{self.count:,} offsets ({', '.join(texts[:5])}{more})"

    def __or__(self, other: Pieces) -> Pieces:
        return Pieces.made([*self, *other])

    def __sub__(self, other: Pieces) -> Pieces:
        left = ((one, without(pieces, other.of.get(one, ()))) for one, pieces in self.of.items())
        return Pieces({one: pieces for one, pieces in left if pieces})

    def __and__(self, other: Pieces) -> Pieces:
        return self - (self - other)

    def before(self, position: Position) -> Pieces:
        """The parts that lie before the position; none of partitions that the position lacks."""
        return self & Pieces.made((one, (0, offset)) for one, offset in position.items())

    def layers(self) -> list[dict[str, dict[str, list[int]]]]:
        """The pieces in layers, each with at most one piece of a partition, by topic and partition: the form of one
        Spark read."""
        rows = zip_longest(*([(one, piece) for piece in pieces] for one, pieces in sorted(self.of.items())))
        found = []
        for row in rows:
            layer: dict[str, dict[str, list[int]]] = {}
            for (topic, number), piece in filter(None, row):
                layer.setdefault(topic, {})[str(number)] = list(piece)
            found.append(layer)
        return found

    @classmethod
    def of_layers(cls, layers: Iterable[Mapping[str, Mapping[str, Sequence[int]]]]) -> Self:
        """Restore the set from the result of :meth:`layers`."""
        return cls.made(
            ((topic, int(number)), (piece[0], piece[1]))
            for layer in layers
            for topic, partitions in layer.items()
            for number, piece in partitions.items()
        )

    def to_json(self) -> dict[str, dict[str, list[list[int]]]]:
        """As JSON values."""
        found: dict[str, dict[str, list[list[int]]]] = {}
        for (topic, number), pieces in sorted(self.of.items()):
            found.setdefault(topic, {})[str(number)] = [list(piece) for piece in pieces]
        return found

    @classmethod
    def from_json(cls, values: Any, *, where: str) -> Self:
        """Restore the set from the result of :meth:`to_json`.

        :raises CorruptEntryError: if the values do not have that form.
        """
        try:
            found = [
                ((str(topic), int(number)), (int(start), int(end)))
                for topic, partitions in values.items()
                for number, pieces in partitions.items()
                for start, end in pieces
            ]
        except (AttributeError, TypeError, ValueError) as error:
            raise CorruptEntryError(f"{where}: {json.dumps(values)[:100]} are no pieces of topics.") from error
        return cls.made(found)
