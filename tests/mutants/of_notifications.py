"""Mutations of a file source that is notified by a queue."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

TOLD = ("tests/sources/test_file_notifications.py",)
HINTS = "sources/file/notifications/hints.py"

MUTATIONS = [
    Mutation(
        name="what a message names gives an error",
        why="who can write into the queue stops the pipeline until somebody purges it, or for days",
        file="sources/file/appending.py",
        old="            return False\n\n    def _append(",
        new="            raise\n\n    def _append(",
        tests=TOLD,
    ),
    Mutation(
        name="files that a listing has left wait for the next one",
        why="no message names them: where all is to be listed rarely, they are never planned",
        file="sources/file/notifications/hints.py",
        old="        return not last_ms or is_due(",
        new="        return last_ms is None or is_due(",
        tests=TOLD,
    ),
    Mutation(
        name="a message of a name that nobody can ask for is deleted unlooked",
        why="only a listing tells whether the file is there: it waits for the next one of all",
        file="sources/file/notifications/hints.py",
        old="            is_unclear = is_unclear or selected != self._held[message]\n",
        new="",
        tests=TOLD,
    ),
    Mutation(
        name="messages are deleted before their files are in the log",
        why="a plan that dies loses them, and the files wait for a listing",
        file=HINTS,
        old="        is_unclear = self._hold(came or [])\n",
        new="        is_unclear = self._hold(came or [])\n        self._queue.delete(came or [])\n",
        tests=TOLD,
    ),
    Mutation(
        name="what does not fit into the batch is not given back",
        why="the files wait for a listing",
        file=HINTS,
        old="        is_left = {message: not paths.isdisjoint(left) for message, paths in self._held.items()}\n",
        new="        is_left = {message: False for message in self._held}\n",
        tests=TOLD,
    ),
    Mutation(
        name="a listing that left files for later counts as full",
        why="files of which no message is there any more wait for the next listing",
        file=HINTS,
        old="full_ms=listed_ms if is_whole else 0)",
        new="full_ms=listed_ms)",
        tests=TOLD,
    ),
    Mutation(
        name="messages that name nothing new end the plan",
        why="a sensor fires for what no run plans",
        file="sources/file/appending.py",
        old="is not None and (not named or self._append_named(limit, named)):\n                return bool(named)\n",
        new="is not None:\n                return bool(named) and self._append_named(limit, named)\n",
        tests=TOLD,
    ),
    Mutation(
        name="what came out of a message is looked at wherever it lies",
        why="whoever may send to the queue has other objects read",
        file=HINTS,
        old="frozenset(filter(self._listing.selects, paths))",
        new="frozenset(path for path in paths if paths[path])",
        tests=TOLD,
    ),
    Mutation(
        name="who only looks at what comes next deletes its messages",
        why="the files wait for a listing, and nobody says so",
        file="sources/file/open.py",
        old=" is None or self._state.is_draft:\n",
        new=" is None:\n",
        tests=TOLD,
    ),
    Mutation(
        name="a sensor takes a new message for one that it has listed for",
        why="each file waits for the next one",
        file=HINTS,
        old="(listed.number, listed.latest) != (number, latest):",
        new="listed.number != number:",
        tests=TOLD,
    ),
    Mutation(
        name="a plan that fails keeps its messages hidden",
        why="its retry says that nothing is new, in green",
        file="sources/file/appending.py",
        old="            self._hints.give_back()  #",
        new="            pass  #",
        tests=TOLD,
    ),
    Mutation(
        name="more messages than a plan receives are planned as they come",
        why="a backlog is not read oldest first, and a watermark passes what waits",
        file=HINTS,
        old=" or len(came) > _MOST or ",
        new=" or ",
        tests=TOLD,
    ),
]
