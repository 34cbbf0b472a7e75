"""A batch's rows in the table, and how they come in and go out, within the transaction that publishes.

In a table to which batches are appended, they are rows of the table. In a table into which changes are merged, they are
the changes, which a table beside it keeps: the newest state of each key is made from them, so that replacing or
withdrawing a batch reverts its changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.changes import DELETED
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.postgres.columns import FLOATS, OWN, Column, columns_of, triggers_of
from airflow_provider_microbatch.sinks.postgres.database import Row, execute
from airflow_provider_microbatch.sinks.postgres.kin import Kin, of_unseen
from airflow_provider_microbatch.sinks.postgres.known_merge import record_merge
from airflow_provider_microbatch.sinks.postgres.names import BATCH, BATCHES, KEPT, LANE, TableName, listed, quoted
from airflow_provider_microbatch.sinks.postgres.types import StagedColumn

if TYPE_CHECKING:
    import psycopg

_OF_BATCH = f"{quoted(LANE)} = %s AND {quoted(BATCH)} = %s"


@dataclass(frozen=True)
class Rows(ABC):
    """:param table: the table that readers read."""

    connection: psycopg.Connection[Row]
    table: TableName

    @property
    @abstractmethod
    def place(self) -> TableName:
        """The table whose rows say which batch brought them."""

    @abstractmethod
    def begin(self, key: BatchKey) -> None:
        """Called first in the transaction: makes other transactions wait that would change what this one depends on.

        :param key: the batch that comes in or goes out.
        """

    @abstractmethod
    def check_alone(self, batch: BatchIdentity, *, had: int | None = None) -> TableName | None:
        """Check that no other pipeline has rows that would count as the batch's.

        :param had: how many rows the batch brought; None if it is not in.
        :return: a record of batches that may have some, and that the login may not read; None if there is none.
        :raises ForeignBatchError: if one has.
        """

    @abstractmethod
    def put_in(self, key: BatchKey, stage: TableName, columns: Sequence[Column], *, staged: int) -> int:
        """Insert a batch's rows from a stage table; return their number.

        :param staged: number of rows in the stage table.
        :raises SinkError: if the table does not take all of the rows.
        """

    @abstractmethod
    def follow(self, touched: Sequence[TableName]) -> None:
        """Update the table to show the rows that came in and went out.

        :param touched: tables that hold these rows.
        """

    def count(self, key: BatchKey) -> int | None:
        """How many rows of a batch are in; None if there is no table for them."""
        if not columns_of(self.connection, self.place):
            return None
        of_batch = f"SELECT count(*) FROM {self.place.sql} WHERE {_OF_BATCH}"
        found = execute(self.connection, of_batch, key.lane, key.id).fetchone()
        assert found is not None
        return int(found[0])

    def astray(self, key: BatchKey) -> str | None:
        """How the table does not show a batch whose rows are all in, in words; None if it does."""
        return None

    def unrecorded(self, key: BatchKey, *, unseen: TableName | None) -> str | None:
        """Rows of a batch not on record, in words, with the ways on; None if none. A publish would double the rows.

        :param unseen: see :meth:`check_alone`.
        """
        count = self.count(key)
        if not count:
            return None
        told = f"{self.place} has {count:,} rows of batch {key}, and {self.table.sibling(BATCHES)} has no row of it: "
        if unseen is not None:
            return f"{told}{of_unseen(unseen)}."
        return (
            f"{told}somebody has removed that, and made again the batch would be there twice. Bring it back from a "
            f"backup; or take the rows out (DELETE FROM {self.place.text} WHERE {quoted(LANE)} = '{key.lane}' AND "
            f"{quoted(BATCH)} = {key.id}), then clear the batch's task."
        )

    def take_out(self, key: BatchKey) -> tuple[TableName, int] | None:
        """Move a batch's rows into a table of their own; return it and their number. None if no batch ever had rows."""
        if not columns_of(self.connection, self.place):
            return None
        kept = self.table.new(KEPT)
        execute(self.connection, f"CREATE TABLE {kept.sql} (LIKE {self.place.sql})")
        moved = execute(
            self.connection,
            f"WITH gone AS (DELETE FROM {self.place.sql} WHERE {_OF_BATCH} RETURNING *) "
            f"INSERT INTO {kept.sql} SELECT * FROM gone",
            key.lane,
            key.id,
        ).rowcount
        left = f"SELECT 1 FROM {self.place.sql} WHERE {_OF_BATCH} LIMIT 1"
        if execute(self.connection, left, key.lane, key.id).fetchone() is not None:
            raise SinkError(
                f"rows of batch {key} of {self.place} cannot be deleted: a trigger or a rule of the table keeps them, "
                "and they would be there twice. Nothing was changed; have it let the batch's rows go."
            )
        return kept, moved

    def _insert(self, key: BatchKey, chosen: str, columns: Sequence[str]) -> int:
        names = listed(columns)
        return execute(
            self.connection,
            f"INSERT INTO {self.place.sql} ({names}, {listed(OWN)}) SELECT {names}, %s, %s FROM ({chosen}) AS chosen",
            key.lane,
            key.id,
        ).rowcount


class Appended(Rows):
    """Each row of a batch is a row of the table."""

    @property
    def place(self) -> TableName:
        return self.table

    def begin(self, key: BatchKey) -> None:
        # Batches of one table do not affect each other.
        Kin(self.connection, self.table).hold(key)

    def check_alone(self, batch: BatchIdentity, *, had: int | None = None) -> TableName | None:
        return Kin(self.connection, self.table).check_alone(
            batch, is_sole=lambda: had is not None and self.count(batch.key) == had
        )

    def put_in(self, key: BatchKey, stage: TableName, columns: Sequence[Column], *, staged: int) -> int:
        brought = self._insert(key, f"SELECT * FROM {stage.sql}", [column.name for column in columns])
        # A trigger may have put them into tables that the table consists of: they are in, but were not counted.
        if brought != staged and (brought := self.count(key) or 0) != staged:
            raise SinkError(
                f"batch {key} has {staged:,} rows, and {self.table} took {brought:,} of them: a trigger or a rule "
                "of the table keeps rows out, and they would be in no table. Nothing was published; have it let the "
                "rows in, or leave them out in the transform."
            )
        return brought

    def follow(self, touched: Sequence[TableName]) -> None:
        pass


@dataclass(frozen=True)
class Merged(Rows):
    """Each row of a batch is a change; for each key, the table has the state of the winning change.

    A change wins over another of its key by a total order of the changes alone, so that the order in which they come
    in, and how often, does not matter.
    """

    merge: Merge

    @property
    def place(self) -> TableName:
        return self.table.changes(self.merge.scd_type)

    def begin(self, key: BatchKey) -> None:
        # Two batches may change one key: each has to see the other's changes, or the last to commit would win. Readers
        # of the table are not blocked, and never see what is locked.
        if columns_of(self.connection, self.place):
            execute(self.connection, f"LOCK TABLE {self.place.sql} IN SHARE ROW EXCLUSIVE MODE")

    def check_alone(self, batch: BatchIdentity, *, had: int | None = None) -> TableName | None:
        return None  # the changes are in a table that no other has rows in common with

    def make_ready(self, columns: Sequence[Column], staged: Sequence[StagedColumn]) -> None:
        """Make the table of the changes, or add columns of the stage that it lacks.

        :param columns: columns of the stage table.
        :param staged: the same columns with Spark's types.
        :raises SinkError: if earlier changes cannot be compared with those of the stage, their columns are narrower, or
            the table has one of them no more.
        """
        found = {column.name: column for column in columns_of(self.connection, self.place)}
        if not found:
            parts = [column.sql for column in columns]
            if DELETED not in {column.name for column in columns}:
                parts.append(f"{quoted(DELETED)} boolean NOT NULL DEFAULT false")
            parts += [f"{quoted(name)} {type} NOT NULL" for name, type in OWN.items()]
            execute(self.connection, f"CREATE TABLE {self.place.sql} ({', '.join(parts)})")
            ordered = listed((*self.merge.keys, *self.merge.sequence_by))
            execute(self.connection, f"CREATE INDEX ON {self.place.sql} ({ordered})")
            execute(self.connection, f"CREATE INDEX ON {self.place.sql} ({listed((BATCH, LANE))})")
            record_merge(self.connection, self.place, self.merge)
            return
        self._shown(found)  # a renamed column would be added beside the one of before
        for column in columns:
            if column.name not in found:
                name = f"{quoted(column.name)} {column.kind}"
                execute(self.connection, f"ALTER TABLE {self.place.sql} ADD COLUMN {name}")
        self._check_room(columns, staged, found)
        known = {name for name, column in found.items() if column.is_needed}
        self._check_order([column for column in columns if column.is_needed and column.name not in known])

    def _shown(self, names: Iterable[str]) -> list[str]:
        """Those of the changes' columns that readers are shown.

        :raises SinkError: if the table has one of them no more.
        """
        shown = [name for name in names if name not in (*OWN, DELETED, *self.merge.leave_out)]
        there = {column.name for column in columns_of(self.connection, self.table)}
        gone = [name for name in shown if name not in there]
        if gone:
            place, name = self.place.sql, quoted(gone[0])
            raise SinkError(
                f"the changes of {self.table}, kept in {self.place}, have the column {gone[0]!r}, which the table has "
                f"no more. If it was renamed there: ALTER TABLE {place} RENAME COLUMN {name} TO … its name of now; if "
                f"it was dropped: ALTER TABLE {place} DROP COLUMN {name}. Nothing was changed. Then run this again."
            )
        return shown

    def _check_room(
        self, columns: Sequence[Column], staged: Sequence[StagedColumn], found: Mapping[str, Column]
    ) -> None:
        """A change reaches the table through the table of the changes: a narrower type there would round its values,
        and another collation would order them otherwise than the table does."""
        problems = []
        for column, one in zip(columns, staged, strict=True):
            old, is_aside = found.get(column.name), column.name in (DELETED, *self.merge.leave_out)
            if old is None:
                continue
            is_like = old.type == column.type and (old.collation == column.collation or not column.is_needed)
            if not (one.fits(old.base) if is_aside else is_like):
                problems.append(
                    f"{old.kind}: ALTER TABLE {self.place.text} ALTER COLUMN {quoted(column.name)} TYPE {column.kind}"
                )
        if problems:
            raise SinkError(
                f"the changes of {self.table}, kept in {self.place}, have a column of another type or collation than "
                f"the table or the result. It is {'; '.join(problems)}. Nothing was loaded."
            )

    def _check_order(self, columns: Sequence[Column]) -> None:
        """Null sorts before every value: no later change of a key could win over a change without a value."""
        lacking = [
            column.name
            for column in columns
            if execute(
                self.connection, f"SELECT 1 FROM {self.place.sql} WHERE {quoted(column.name)} IS NULL LIMIT 1"
            ).fetchone()
        ]
        if lacking:
            raise SinkError(
                f"of the changes of {self.table}, kept in {self.place}, one has no value of "
                f"{', '.join(map(repr, lacking))}, which keys or sequence_by of the merge name now: nobody could say "
                "which change is newer. Nothing was loaded. Give them a value there, or go on by the columns of before."
            )
        for column in columns:
            name = quoted(column.name)
            execute(self.connection, f"ALTER TABLE {self.place.sql} ALTER COLUMN {name} SET NOT NULL")

    def put_in(self, key: BatchKey, stage: TableName, columns: Sequence[Column], *, staged: int) -> int:
        # Of the changes of one place within a batch, only the winning one can ever matter: a replay replaces them all.
        self._check_numbers(key, stage, columns)
        names = [column.name for column in columns]
        has_deleted = DELETED in names
        # Without a delete_when nothing is a deletion; earlier changes, made with one, have the column.
        more = "" if has_deleted else f", false AS {quoted(DELETED)}"
        chosen = (
            f"SELECT DISTINCT ON ({listed(self.merge.distinct_by)}) *{more} FROM {stage.sql} AS c "
            f"ORDER BY {self._order('c', names, has_deleted=has_deleted)}"
        )
        return self._insert(key, chosen, names if has_deleted else [*names, DELETED])

    def _check_numbers(self, key: BatchKey, stage: TableName, columns: Sequence[Column]) -> None:
        """NaN sorts behind every number: no later change of a key could win over a change with it."""
        for column in columns:
            if column.name not in self.merge.sequence_by or column.base not in FLOATS:
                continue
            of_none = f"SELECT count(*) FROM {stage.sql} WHERE {quoted(column.name)} = 'NaN'"
            found = execute(self.connection, of_none).fetchone()
            assert found is not None
            if found[0]:
                raise SinkError(
                    f"{found[0]:,} of the changes of batch {key} have NaN in {column.name!r}, by which changes are "
                    f"merged into {self.table}: they would be newer than all later ones. Nothing was published; have "
                    "the transform leave them out, or give them a number."
                )

    def is_empty(self) -> bool:
        """Whether no batch has a change."""
        there = columns_of(self.connection, self.place)
        return not there or execute(self.connection, f"SELECT 1 FROM {self.place.sql} LIMIT 1").fetchone() is None

    def follow(self, touched: Sequence[TableName]) -> None:
        names = [column.name for column in columns_of(self.connection, self.place) if column.name not in OWN]
        if not names or not touched:
            return
        shown = self._shown(names)
        keys = listed(self.merge.keys)
        affected = " UNION ".join(f"SELECT DISTINCT {keys} FROM {table.sql}" for table in touched)
        execute(
            self.connection,
            f"WITH {self._winning(affected, names)}, "
            # A key without remaining changes has nulls here: its row is deleted like that of a deleted key.
            f"gone AS (DELETE FROM {self.table.sql} AS t USING winning AS w "
            f"WHERE {self._same('t', 'w')} AND w.{quoted(DELETED)} IS NOT FALSE) "
            f"INSERT INTO {self.table.sql} AS t ({listed(shown)}) SELECT {listed(shown)} FROM winning AS w "
            f"WHERE w.{quoted(DELETED)} IS FALSE ON CONFLICT ({keys}) {self._update(shown)}",
        )

    def astray(self, key: BatchKey) -> str | None:
        has = {column.name for column in columns_of(self.connection, self.table)}
        if not has:
            return f"{self.table} is gone"
        names = [column.name for column in columns_of(self.connection, self.place) if column.name not in OWN]
        of_batch = f"SELECT DISTINCT {listed(self.merge.keys)} FROM {self.place.sql} WHERE {_OF_BATCH}"
        found = execute(
            self.connection,
            f"WITH {self._winning(of_batch, names)} SELECT count(*) FROM winning AS w LEFT JOIN {self.table.sql} AS t "
            f"ON {self._same('t', 'w')}{self._newest('t')} WHERE {self._differs(has)}",
            key.lane,
            key.id,
        ).fetchone()
        assert found is not None
        if not found[0]:
            return None
        triggers = ", ".join(triggers_of(self.connection, self.table))
        makes = f", or its trigger {triggers} makes other rows: then no clear changes that" if triggers else ""
        return (
            f"of the keys that it has changed, {found[0]:,} are in {self.table} not as {self.place} says: the table "
            f"was put back without that, or changed by hand{makes}"
        )

    def _newest(self, of: str) -> str:
        """What tells the newest state of a key among its rows, as a further condition."""
        return ""

    def _differs(self, has: Collection[str]) -> str:
        """Whether the row of a key is another one than that of its winning change, in what triggers seldom change: it
        is there or not, and its place in the order."""
        shown = f"w.{quoted(DELETED)} IS FALSE"
        order = [name for name in self.merge.sequence_by if name in has and name not in self.merge.leave_out]
        others = [f"({shown} AND t.{quoted(name)} IS DISTINCT FROM w.{quoted(name)})" for name in order]
        return " OR ".join([f"(t.{quoted(self.merge.keys[0])} IS NULL) = ({shown})", *others])

    def _winning(self, affected: str, names: Sequence[str]) -> str:
        """For each key of a query its winning change, found in the index; nulls for a key without changes."""
        return (
            f"affected AS MATERIALIZED ({affected}), "
            f"winning AS MATERIALIZED (SELECT {listed(self.merge.keys, of='a')}, {self._others('w', names)} "
            f"FROM affected AS a LEFT JOIN LATERAL (SELECT * FROM {self.place.sql} AS c "
            f"WHERE {self._same('c', 'a')} ORDER BY {self._order('c', names)} LIMIT 1) AS w ON true)"
        )

    def _others(self, of: str, names: Sequence[str]) -> str:
        return listed([name for name in names if name not in self.merge.keys], of=of)

    def _same(self, one: str, other: str) -> str:
        return " AND ".join(f"{one}.{quoted(key)} = {other}.{quoted(key)}" for key in self.merge.keys)

    def _order(self, of: str, names: Sequence[str], *, has_deleted: bool = True) -> str:
        """Order by the keys, then the winner first."""
        parts = [f"{of}.{quoted(key)}" for key in self.merge.keys]
        parts += [f"{of}.{quoted(column)} DESC" for column in self.merge.sequence_by]
        parts += [f"{of}.{quoted(DELETED)} DESC"] * has_deleted
        # The remaining columns only decide between changes that the user's order does not distinguish, always alike:
        # behind each value is the same sign, also behind the last. Else one more column, null in both, could turn two
        # changes around.
        rest = sorted(name for name in names if name != DELETED)
        return ", ".join([*parts, f'ROW({listed(rest, of=of)}, NULL)::text COLLATE "C" DESC'])

    def _update(self, shown: Sequence[str]) -> str:
        others = [name for name in shown if name not in self.merge.keys]
        if not others:
            return "DO NOTHING"
        new = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in others)
        # A late change that does not win leaves the row untouched: no new version of the row, no trigger.
        same = f"ROW({listed(others, of='t')})::text IS DISTINCT FROM ROW({listed(others, of='EXCLUDED')})::text"
        return f"DO UPDATE SET {new} WHERE {same}"
