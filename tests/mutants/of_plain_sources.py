"""Mutations of sources that users write in Python: polled ones, and data sources of PySpark."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

POLLING = "tests/sources/test_polling.py"
PLANNING = "tests/sources/test_python_planning.py"
TRIAL = "tests/sources/test_trial.py"
JDBC = "tests/sources/test_jdbc.py"
PACKAGING = "tests/engines/test_packaging.py"

MUTATIONS = [
    Mutation(
        name="a source's first position is not recorded",
        why="a replay of batch 0 asks the source where it begins by now: rows are lost or doubled",
        file="execution/opened_sources.py",
        old="            starts[name] = ends[name] = start = source.initial_offset() if start is None else start\n",
        new="            starts[name] = ends[name] = start\n",
        tests=("tests/execution/test_first_positions.py",),
    ),
    Mutation(
        name="a polled source may go back",
        why="a batch reads again what was read",
        file="sources/polling/open.py",
        old="        if self.is_after(begin, end):\n",
        new="        if False:\n",
        tests=(POLLING,),
    ),
    Mutation(
        name="an offset that JSON changes is recorded",
        why="the user's code is asked for a range that it has never given",
        file="sources/polling/offsets.py",
        old="    if not same(back, value):\n",
        new="    if False:\n",
        tests=(POLLING,),
    ),
    Mutation(
        name="positions are compared as they were written",
        why="one that a person has set makes an empty batch, and a sensor that fires for nothing",
        file="sources/polling/open.py",
        old="        if same(decoded(end), decoded(begin)):\n",
        new="        if end == begin:\n",
        tests=(POLLING,),
    ),
    Mutation(
        name="a class of a DAG file is planned with",
        why="each attempt fails in Spark, on a batch that cannot be made",
        file="sources/polling/open.py",
        old='        if path.startswith(_OF_ONE_PROCESS) or "." in path.partition(":")[2]:\n',
        new="        if False:\n",
        tests=(POLLING,),
    ),
    Mutation(
        name="a field may hold a secret",
        why="it stands in the checkpoint and in Airflow's database",
        file="sources/polling/open.py",
        old="            if isinstance(value, str) and mask(value) != value and",
        new="            if False and",
        tests=(POLLING,),
    ),
    Mutation(
        name="a data source that counts how often it is asked is believed",
        why="each new process begins anew, and a batch reads again what was read",
        file="sources/python/open.py",
        old="        if self.is_after(begin, end):\n",
        new="        if False:\n",
        tests=(PLANNING,),
    ),
    Mutation(
        name="a planner that was interrupted is asked again",
        why="the answer to the last question is taken for that to the next: another range is planned",
        file="sources/python/resident.py",
        old="                self._end()\n                if isinstance",
        new="                if isinstance",
        tests=(PLANNING,),
    ),
    Mutation(
        name="each question has a planner of its own",
        why="a poll costs a second instead of milliseconds",
        file="sources/python/resident.py",
        old="            planner = self._planners.setdefault(key, Planner(opening))\n",
        new="            planner = self._planners[key] = Planner(opening)\n",
        tests=(PLANNING,),
    ),
    Mutation(
        name="a checkpoint's word is enough to run a data source",
        why="who can write the checkpoint runs code in every process that looks at it",
        file="sources/python/__init__.py",
        old="        check_class_path(self.source)\n",
        new="",
        tests=(PLANNING,),
    ),
    Mutation(
        name="a reader that takes limits is given none",
        why="a first batch is as large as the stream is long",
        file="runtime/stream_readers.py",
        old='        if rows is not None and kind in ("ReadAllAvailable", "ReadMaxRows"):\n',
        new="        if False:\n",
        tests=("tests/contract/test_source.py",),
    ),
    Mutation(
        name="the runtime is not there for modules that stand on it",
        why="a polled source cannot be imported where there is nothing but Spark",
        file="__init__.py",
        old='            if name not in _ON_SPARK or error.name != f"{__name__}.sources":\n',
        new="            if True:\n",
        tests=(PACKAGING,),
    ),
    Mutation(
        name="a folder without an __init__.py is no module in its archive",
        why="a source in `jobs`, beside the DAG files, cannot be imported by Spark",
        file="engines/packaging.py",
        old='            if folder / "__init__.py" not in names.values():\n',
        new="            if False:\n",
        tests=(PACKAGING,),
    ),
    Mutation(
        name="the trial does not compare what two reads gave",
        why="a source that has other rows each time is called good",
        file="sources/trial.py",
        old="    if one == other:\n        return\n",
        new="    return\n",
        tests=(TRIAL,),
    ),
    Mutation(
        name="the trial calls commit unasked",
        why="to try a source changes it",
        file="sources/trial.py",
        old="    if not trial.commits:\n",
        new="    if False:\n",
        tests=(TRIAL,),
    ),
    Mutation(
        name="what was missed in a table is not looked for again",
        why="a row whose transaction committed late is lost",
        file="sources/jdbc/open.py",
        old="        filled = table.filled([(gap.first, gap.last) for gap in begin.gaps])\n",
        new="        filled = table.filled([])\n",
        tests=(JDBC,),
    ),
    Mutation(
        name="a gap is given up while a transaction of then runs",
        why="a row whose transaction was open for long is lost",
        file="sources/jdbc/open.py",
        old="            over = gap.xmax <= xmin and ",
        new="            over = ",
        tests=(JDBC,),
    ),
    Mutation(
        name="a batch of a table has what was missed when it was planned",
        why="a replay has rows of a later batch too: they are doubled",
        file="sources/jdbc/offset.py",
        old="            if gap.first > start:\n",
        new="            if False:\n",
        tests=(JDBC,),
    ),
    Mutation(
        name="rows of a table that are gone are not missed",
        why="a replay puts fewer rows in the place of what was published",
        file="sources/jdbc/open.py",
        old="            return max(0, place.rows - table",
        new="            return min(0, place.rows - table",
        tests=(JDBC,),
    ),
    Mutation(
        name="what goes while a table is read is not missed",
        why="a batch is published without rows that were deleted in the middle",
        file="sources/jdbc/open.py",
        old="        if gone > _left_out(told):\n",
        new="        if False:\n",
        tests=(JDBC,),
    ),
]
