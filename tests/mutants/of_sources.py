"""Mutations of the sources."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

PLANNING = "tests/sources/test_file_planning.py"
BACKFILL = "tests/execution/test_backfill.py"
INDEX = "tests/sources/test_file_index.py"
CLEAN = "tests/sources/test_file_clean.py"
PIPELINE = "tests/execution/test_pipeline.py"
CHANGES = "tests/sources/test_file_changes.py"
CLEAN_RUNS = "tests/execution/test_clean_source.py"
CLEAN_LATE = "tests/execution/test_clean_late.py"

MUTATIONS = [
    Mutation(
        name="a plan that died after its source log is made anew",
        why="files that were planned are skipped",
        file="sources/file_open.py",
        old="        while True:\n            ahead = ",
        new="        begin = self._seen.latest\n        while True:\n            ahead = ",
        tests=(PLANNING, "tests/contract/test_source.py"),
    ),
    Mutation(
        name="a backfill's files are not marked as its lane's",
        why="the live lane reads what a backfill has read",
        file="sources/file_log.py",
        old='    tag = {} if lane == LIVE else {"lane": lane}\n',
        new="    tag: dict[str, str] = {}\n",
        tests=(BACKFILL,),
    ),
    Mutation(
        name="a range has the files of all lanes",
        why="a live range across a backfill reads the backfill's files again",
        file="sources/file_open.py",
        old=" if file.lane == self._lane]",
        new="]",
        tests=(BACKFILL,),
    ),
    Mutation(
        name="a live commit releases what other lanes have read",
        why="what a backfill committed before clean_source was switched on is archived or deleted",
        file="sources/file_open.py",
        old="        read = {file.log_id for file in self._range(log_id(start), log_id(end))}\n",
        new="        read = set(_entries(start, end))\n",
        tests=(CLEAN_LATE,),
    ),
    Mutation(
        name="a lane does not look for what its dead plan took",
        why="files of a plan that died are read by nobody",
        file="sources/file_open.py",
        old="            own = window.own\n",
        new="            own = None\n",
        tests=(BACKFILL,),
    ),
    Mutation(
        name="clean_source takes all before the commit",
        why="files that no batch of this checkpoint has read are deleted: of an adopted query, set aside, skipped",
        file="sources/file_open.py",
        old="        read = {file.log_id for file in self._range(log_id(start), log_id(end))}\n",
        new="        read = set(range(log_id(end) + 1))\n",
        tests=(CLEAN,),
    ),
    Mutation(
        name="who deletes is forgotten when clean_source is switched off",
        why="what is planned again while a cleaner sleeps is deleted, and its rows are in no table",
        file="sources/file_open.py",
        old="            if is_taking or file.log_id in cleaned.deleting:\n",
        new="            if is_taking:\n",
        tests=(CLEAN_LATE,),
    ),
    Mutation(
        name="who could not delete is at it for ever",
        why="no clear and no rewind goes on where a file may not be deleted, also once clean_source is switched off",
        file="sources/file_cleaning.py",
        old=", deleting=self.deleting.without(ids))",
        new=")",
        tests=(CLEAN_LATE,),
    ),
    Mutation(
        name="clean_source takes what was passed over",
        why="a batch that was set aside, and released by a process that slept, cannot be run again: its rows are lost",
        file="sources/file_clean.py",
        old="            found |= over if one.is_read else set()\n",
        new="            found |= over\n",
        tests=(CLEAN,),
    ),
    Mutation(
        name="clean_source does not look at the logs once more",
        why="a rewind that looked before it said what it takes plans files that are deleted at that moment",
        file="sources/file_clean.py",
        old="        ready = _committed({number: files[number] for number in still}, committed)\n",
        new="        ready = still\n",
        tests=(CLEAN_LATE,),
    ),
    Mutation(
        name="clean_source takes what somebody reads",
        why="a replay reads half of its files",
        file="sources/file_open.py",
        old="        return {number for one in self._being_read() for number in _entries(one.start, one.end)}\n",
        new="        return set()\n",
        tests=(CLEAN,),
    ),
    Mutation(
        name="a file that came back while its batch was read counts as read",
        why="its rows are in no batch",
        file="sources/file_open.py",
        old='        if back or told["files"] < len(files):\n',
        new="        if False:\n",
        tests=("tests/sources/test_file_changes.py",),
    ),
    Mutation(
        name="clean_source says what it took when it is through",
        why="a replay after its death goes on without files that it took",
        file="sources/file_clean.py",
        old="        due = self._record.change(lambda found: found.taking(taken, deletes=deletes)).due\n",
        new="",
        tests=(CLEAN_RUNS,),
    ),
    Mutation(
        name="clean_source goes through links",
        why="files of somebody else, that the source shows by a link, are deleted",
        file="sources/file_folder.py",
        old="_HOLD | os.O_NOFOLLOW",
        new="_HOLD",
        tests=(CLEAN_RUNS,),
    ),
    Mutation(
        name="a file that clean_source has taken is skipped as missing",
        why="a replay drops the rows of files that our own archiver has moved",
        file="sources/file_present.py",
        old="(taken if one.planned.log_id in cleaned else gone).append(one)",
        new="gone.append(one)",
        tests=(CLEAN,),
    ),
    Mutation(
        name="an index of another log is used",
        why="after a restore from a backup, files that no batch read count as planned and are lost",
        file="sources/file_seen.py",
        old="self._log.seal(self._segments[-1].span.last) != self._segments[-1].span.seal",
        new="False",
        tests=(INDEX,),
    ),
    Mutation(
        name="a landing folder that is not mounted is skipped",
        why="the batch is committed without its rows, which are there again a moment later",
        file="sources/file_present.py",
        old="        if empty and nothing_found:\n",
        new="        if False:\n",
        tests=(CHANGES,),
    ),
    Mutation(
        name="a landing folder that does not exist is skipped",
        why="the batch is committed without its rows, which are there again a moment later",
        file="sources/file_present.py",
        old="        except (FileNotFoundError, NotADirectoryError):\n            return (\n",
        new="        except (FileNotFoundError, NotADirectoryError):\n            continue\n            return (\n",
        tests=(CHANGES,),
    ),
    Mutation(
        name="only the source's own folder counts as where it reads",
        why="a table below it comes back in every run",
        file="sources/file_overlap.py",
        old="    return all(_is_entered(name, recursive=recursive) for name in names[len(parts) :])\n",
        new="    return len(names) <= len(parts)\n",
        tests=(PIPELINE,),
    ),
    Mutation(
        name="only the very same path is shared",
        why="a source below another is cleaned, or cleans, what the other has not read yet",
        file="sources/file_overlap.py",
        old="    if not all(map(_meet, short, long)):\n",
        new="    if list(short) != list(long):\n",
        tests=(PIPELINE,),
    ),
]
