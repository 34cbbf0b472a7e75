"""Files landing in a folder, as a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.definition import is_read_back
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.masking import refusal
from airflow_provider_microbatch.runtime.session import loses_rows
from airflow_provider_microbatch.sources import OpenSource, Source, SourceContext
from airflow_provider_microbatch.sources.file.listing import Listing
from airflow_provider_microbatch.sources.file.notifications import QueueAddress
from airflow_provider_microbatch.sources.file.overlap import archive_alike, list_alike, lists_below
from airflow_provider_microbatch.sources.file.path import (
    absolute_path,
    component_regex,
    connection_of,
    expand_braces,
    is_object,
)

if TYPE_CHECKING:
    from airflow_provider_microbatch.connections import Connect
    from airflow_provider_microbatch.sources.file.place import Place

FORMATS = ("json", "csv", "parquet", "orc", "text", "avro")
PARSED = ("json", "csv")
"""The text formats among them: a record may not be a row of the schema, and Spark tells which records are not."""

_PLANNED_HERE = {
    "path": "path",
    "basepath": "path",
    "recursivefilelookup": "recursive",
    "pathglobfilter": "file_name_pattern",
    "maxfilespertrigger": "max_files",
    "maxbytespertrigger": "max_bytes",
    "maxfileage": "max_file_age",
    "latestfirst": "latest_first",
    "cleansource": "clean_source",
    "sourcearchivedir": "archive_dir",
    "ignoremissingfiles": "on_missing",
    "modifiedbefore": "min_file_age",
    "modifiedafter": "max_file_age",
    "__globpaths__": "path",
}
"""Spark's options that decide which files are read. If Spark got them beside a plan, it would drop planned files."""


@dataclass(frozen=True)
class FileSource(Source):
    """Files under a path; each is read once, by the batch that planned it.

    A file is identified by its path: a file that is written again under a planned path is not read again. Files must
    appear whole (written elsewhere and renamed into place, or under a hidden name: ``.x``, ``_x``, ``x._COPYING_``);
    where the writer cannot do that, ``min_file_age`` holds files back until they have not changed for a while.

    :param path: absolute local path or ``file:`` URL of a folder, a file, or a Hadoop glob over these; or the same in
        an object store, ``s3://conn_id@bucket/folder``. Taken literally, not percent-decoded. Below a folder, files and
        ``key=value`` folders are read; the latter become columns, counted from the part of the path that holds no glob.
    :param format: ``json``, ``csv``, ``parquet``, ``orc``, ``text`` or ``avro`` (Spark needs its avro package).
    :param schema: as DDL (``"id long, ts timestamp"``). None: inferred from the first batch's files, then pinned in the
        checkpoint; fields that only come later are then not read.
    :param options: reader options of Spark for the format (``multiLine``, ``mode``, ``sep``, …).
    :param max_files: the largest number of files in a batch.
    :param max_bytes: the largest number of bytes in a batch; a batch always has at least one file.
    :param min_file_age: seconds since a file's last change before it is planned. Compares this machine's clock with the
        file server's: add the largest difference between both clocks.
    :param max_file_age: seconds; files older than the newest planned file by more than this are left out for good. The
        first batch takes all files, as in Spark.
    :param latest_first: newest files first; else oldest first. Files with the same time are in the order of their
        paths.
    :param recursive: enter all folders below ``path``. As in Spark, there are no partition columns then.
    :param file_name_pattern: a glob that file names (not folders) must match.
    :param clean_source: after the commit, ``archive`` moves the batch's files to ``archive_dir``, ``delete`` removes
        them; only files committed since this was set. A file that changed after it was planned is left alone. Replays
        read archived files from the archive.
    :param archive_dir: absolute local folder on the same file system, outside of ``path``. A file keeps its path below
        the part of ``path`` that holds no glob (Spark would keep the full path).
    :param bounded: the source is finished after the files that are there at the first plan that finds a file; files
        that are too young at that plan do not count. Limits apply as they were at that plan.
    :param ordered: new files' paths sort after the paths of existing files (``dt=2026-11-21/hh=10/…``; compared as
        whole texts, as object stores compare keys). Plans and sensors then list only paths that sort after the planned
        files. Not with ``bounded``, which lists once.
    :param notifications: ``sqs://conn_id/queue``: the queue to which the bucket's service tells of new objects, and no
        other source's. Plans look at what it names, and sensors list where it has messages, so that a bucket in which
        nothing lands is not listed. Without ``conn_id`` the environment's credentials. Not with ``ordered``,
        ``bounded``, ``min_file_age`` (an object is whole as soon as it is there) or ``max_file_age``: a file whose
        message was lost is found by a listing, however old it is by then.
    :param full_listing_seconds: with ``ordered``, or ``notifications``, the interval in seconds at which all paths are
        listed again, for files that came out of order (the log names these), or of which no message came. None: an
        hour.
    :param on_missing: reaction to a planned file that is gone: ``fail``, or ``skip`` it.
    :param on_changed: reaction to a planned file whose size or mtime has changed: ``fail``, or ``read`` it as it is
        now.
    :param allow_table: read the files of a table that a pipeline of this package writes, although a batch of the table
        that is replayed or rewound comes again in new files, whose rows are then read twice. For a table whose batches
        are never made again. Otherwise the plan and the sensor refuse a path that is, lies in, or contains such a
        table.
    :param packages: for a path in an object store: Maven coordinates of Hadoop's connector, for spark-submit. None: the
        connector for the installed PySpark; empty: Spark has the connector.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    path: str
    _: KW_ONLY
    format: str = "json"
    schema: str | None = None
    options: Mapping[str, str | bool | int | float] = field(default_factory=dict)
    max_files: int | None = None
    max_bytes: int | None = None
    min_file_age: float | None = None
    max_file_age: float | None = None
    latest_first: bool = False
    recursive: bool = False
    file_name_pattern: str | None = None
    clean_source: str | None = None
    archive_dir: str | None = None
    bounded: bool = False
    on_missing: str = "fail"
    on_changed: str = "fail"
    ordered: bool = False
    notifications: str | None = None
    full_listing_seconds: float | None = None
    allow_table: bool = False
    packages: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise DefinitionError(f"FileSource: path must be a path or file: URL, not {self.path!r}.")
        where = f"FileSource({self.path!r})"
        # A malformed address may contain a password, so it is not repeated.
        pattern = absolute_path(self.path, field="FileSource: path" if is_object(self.path) else f"{where}: path")
        for component in [part for one in expand_braces(pattern) for part in one.split("/")]:
            component_regex(component)
        self._check_choice("format", FORMATS)
        self._check_choice("clean_source", (None, "archive", "delete"))
        self._check_choice("on_missing", ("fail", "skip"))
        self._check_choice("on_changed", ("fail", "read"))
        for name in ("latest_first", "recursive", "bounded", "ordered", "allow_table"):
            if not isinstance(getattr(self, name), bool):
                raise DefinitionError(f"{where}: {name} must be True or False, not {getattr(self, name)!r}.")
        for name in ("max_files", "max_bytes"):
            self._check_limit(name, int)
        for name in ("min_file_age", "max_file_age", "full_listing_seconds"):
            self._check_limit(name, (int, float))
        for name in ("schema", "file_name_pattern"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise DefinitionError(f"{where}: {name} must be a text that is not empty, or None; not {value!r}.")
        if self.file_name_pattern is not None:
            for one in expand_braces(self.file_name_pattern):
                component_regex(one)
        if self.refuses_limits is not None and (self.max_files or self.max_bytes):
            raise DefinitionError(f"{where}: {self.refuses_limits}. Leave out one of the three.")
        if self.ordered and self.bounded:
            raise DefinitionError(f"{where}: a bounded source lists once, so ordered means nothing. Leave out one.")
        self._check_notifications()
        if self.full_listing_seconds is not None and not self.ordered and self.notifications is None:
            raise DefinitionError(
                f"{where}: full_listing_seconds belongs to ordered=True, or notifications; else every listing is full."
            )
        self._check_packages()
        self._check_options()
        self._check_archive(Listing(pattern).base)

    def open(self, context: SourceContext) -> OpenSource:
        """Return the source opened for one checkpoint."""
        from airflow_provider_microbatch.sources.file.open import OpenFileSource

        return OpenFileSource(self, context)

    @property
    def refuses_limits(self) -> str | None:
        if self.max_file_age is None or not self.latest_first:
            return None
        return "max_file_age with latest_first and a limit would drop the older files for good"

    @property
    def refuses_streams(self) -> str | None:
        """The operators of a stateful pipeline have their columns before a file is read."""
        if self.schema is None:
            return "a stream has its columns before it reads a file. Give it schema='id long, …'"
        return None

    @property
    def refuses_dead_letters(self) -> str | None:
        """Spark reports records that do not parse only for a known schema; and a reader with a mode that drops them, or
        fails, leaves nothing for dead letters."""
        if self.format not in PARSED:
            return None
        if self.schema is None:
            return "infers its columns from whatever is in its files. Give it schema='id long, …'"
        mode = {key.lower(): value for key, value in self.options.items()}.get("mode", "PERMISSIVE")
        if str(mode).upper() != "PERMISSIVE":
            return f"has mode={mode!r}, which leaves nothing for them. Leave out the option"
        return None

    @property
    def gives_up(self) -> bool:
        return self.clean_source is not None

    @property
    def gives_up_to(self) -> str | None:
        return self.archive_path()

    def reads_as(self) -> Mapping[str, str | None]:
        """Format, schema, whether folders become columns, and the reader's options, whose names have no case."""
        options = {f"options[{key.lower()!r}]": _as_spark(value) for key, value in self.options.items()}
        # Only where it is set: records of attempts of an earlier version do not contain it.
        recursive = {"recursive": "True"} if self.recursive else {}
        return {"format": self.format, "schema": self.schema, **recursive, **options}

    def would_read(self, location: str) -> bool:
        """Whether a folder is the source's path, or a listed folder below it, whatever the names of its files are."""
        try:
            folder = absolute_path(location, field="location")
        except DefinitionError:
            return False
        return lists_below(self.listing(), folder)

    def shares_with(self, other: Source) -> bool:
        """Whether both sources could list the same file."""
        if not isinstance(other, FileSource) or is_object(self.path) != is_object(other.path):
            return False
        return list_alike(self.listing(), other.listing())

    def refuses_beside(self, other: Source) -> str | None:
        """The reason if a file of each source could be archived to the same path."""
        own, others = self.archive_path(), other.archive_path() if isinstance(other, FileSource) else None
        if not isinstance(other, FileSource) or own is None or others is None:
            return None
        if not archive_alike(self.listing(), own, other.listing(), others):
            return None
        return (
            f"could archive files to the same path below {self.gives_up_to!r}: the second would stay where it is, and "
            "a replay could read the other's. Give each an archive_dir of its own; what was archived is found where "
            "it is."
        )

    def location(self) -> str:
        """The path as written."""
        return self.path

    def moved_from(self, before: Source) -> str | None:
        """The source identifies the files that it has read by their addresses, by whatever pattern they are listed."""
        if self.shares_with(before):
            return None
        return (
            "all that is there is new to it. Where it is what was read there already, moved or read by another source, "
            "it is read again and in the table twice"
        )

    def _address(self) -> str:
        """The path as files below it are identified, however it is written."""
        return absolute_path(self.path, field="path")

    def listing(self) -> Listing:
        """Return the walk over the files of this source."""
        return Listing(
            self._address(),
            recursive=self.recursive,
            file_name_pattern=self.file_name_pattern,
            allow_table=self.allow_table,
        )

    def place(self, connect: Connect) -> Place:
        """Return the place of the source's files. Touches nothing.

        :param connect: finds a connection, when it is needed.
        """
        if is_object(self.path):
            from airflow_provider_microbatch.sources.file.objects import ObjectPlace

            path, conn_id = self._address(), connection_of(self.path)
            return ObjectPlace(path, conn_id=conn_id, connect=connect, packages=self.packages)
        from airflow_provider_microbatch.sources.file.posix import PosixPlace

        return PosixPlace()

    def archive_path(self) -> str | None:
        """The archive's absolute local path; None without one."""
        return None if self.archive_dir is None else absolute_path(self.archive_dir, field="archive_dir")

    def _check_choice(self, name: str, choices: tuple[str | None, ...]) -> None:
        value = getattr(self, name)
        if not isinstance(value, (str, type(None))) or value not in choices:
            known = ", ".join(map(repr, choices))
            raise DefinitionError(f"FileSource({self.path!r}): {name} must be one of {known}; not {value!r}.")

    def _check_limit(self, name: str, types: Any) -> None:
        value = getattr(self, name)
        if value is None:
            return
        if not isinstance(value, types) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise DefinitionError(
                f"FileSource({self.path!r}): {name} must be a number above 0, or None for no limit; not {value!r}."
            )

    def _check_notifications(self) -> None:
        if self.notifications is None:
            return
        if not isinstance(self.notifications, str):
            raise DefinitionError(f"FileSource({self.path!r}): notifications must be an address, or None.")
        QueueAddress.parse(self.notifications)
        if not is_object(self.path):
            raise DefinitionError(f"FileSource({self.path!r}): notifications come from a bucket, and path is a folder.")
        for name in ("ordered", "bounded", "min_file_age", "max_file_age"):
            if getattr(self, name):
                raise DefinitionError(f"FileSource({self.path!r}): {name} goes with no notifications. Leave out one.")

    def _check_options(self) -> None:
        where = f"FileSource({self.path!r}): options"
        if not isinstance(self.options, Mapping):
            raise DefinitionError(f"{where} must be a dict, not {self.options!r}.")
        for key, value in self.options.items():
            if not isinstance(key, str) or not isinstance(value, (str, bool, int, float)):
                raise DefinitionError(f"{where}: {key!r} must be a text, and its value a text, number or bool.")
            refused = None if is_read_back() else refusal(key, value) or loses_rows(key, value)
            if refused is not None:
                raise DefinitionError(f"{where}: {refused}")
            field_name = _PLANNED_HERE.get(key.lower())
            if field_name is not None:
                raise DefinitionError(
                    f"{where}: {key!r} decides which files are read, which is the plan's business; "
                    f"use the parameter {field_name} of FileSource."
                )

    def _check_packages(self) -> None:
        value: Any = self.packages
        if value is None:
            return
        if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) and one for one in value):
            raise DefinitionError(
                f"FileSource({self.path!r}): packages must be a list of Maven coordinates, or None; not {value!r}."
            )
        object.__setattr__(self, "packages", list(value))  # a definition travels as JSON, which has lists only

    def _check_archive(self, base: str) -> None:
        where = f"FileSource({self.path!r})"
        if (self.clean_source == "archive") != (self.archive_dir is not None):
            raise DefinitionError(f"{where}: clean_source='archive' and archive_dir go together; give both or neither.")
        if self.archive_dir is None:
            return
        if not isinstance(self.archive_dir, str) or not self.archive_dir:
            raise DefinitionError(f"{where}: archive_dir must be a path, not {self.archive_dir!r}.")
        shown = "FileSource" if is_object(self.archive_dir) else where
        archive = absolute_path(self.archive_dir, field=f"{shown}: archive_dir")
        if is_object(archive) != is_object(base) or connection_of(self.archive_dir) != connection_of(self.path):
            raise DefinitionError(
                f"{where}: archive_dir {self.archive_dir!r} is not at the place of the source: on the same file "
                "system, or in the same bucket by the same connection."
            )
        if _inside(archive, base) or _inside(base, archive):
            raise DefinitionError(
                f"{where}: archive_dir {self.archive_dir!r} and the source {base!r} lie in each other; archived files "
                "would be read again. Use a folder beside the source."
            )


def _as_spark(value: str | bool | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
