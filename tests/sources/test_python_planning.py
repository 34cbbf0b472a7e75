"""Planning for Python data sources: a process with PySpark and no JVM, that stays."""

from __future__ import annotations

import contextvars
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import DefinitionError, SourceError, UntrustedError
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.registry import SOURCES
from airflow_provider_microbatch.settings import Settings
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources import OpenSource, Source, SourceContext
from airflow_provider_microbatch.sources.python import PythonSource, resident
from airflow_provider_microbatch.sources.python.order import is_after
from airflow_provider_microbatch.sources.python.resident import Planner, Residents
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def head(tmp_path: Path) -> Path:
    path = tmp_path / "head"
    path.write_text("3")
    return path


def opening(head: Path, reader: str = "Numbers", **changes: Any) -> dict[str, Any]:
    options = {"path": str(head)}
    return {"source": f"number_streams:{reader}", "options": options, "schema": None, "path": sys.path, **changes}


@pytest.fixture
def planner(head: Path) -> Iterator[Planner]:
    made = Planner(opening(head))
    yield made
    made.close()


def latest(planner: Planner, start: Any = None, **limit: Any) -> Any:
    return planner.ask("latest", start=start, **{"rows": None, "bytes": None, **limit})


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[Source], OpenSource]:
    def opened(source: Source) -> OpenSource:
        store = PosixStore(tmp_path / "checkpoint")
        return source.open(SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0))

    return opened


def gone(pid: int) -> bool:
    """Whether the process has ended, whoever has still to hear of it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_it_has_pyspark_and_no_jvm_and_this_process_has_neither(head: Path) -> None:
    ask = (
        "import json, sys; from airflow_provider_microbatch.sources.python.resident import Planner;"
        f"planner = Planner(json.loads({json.dumps(json.dumps(opening(head)))}));"
        "print(planner.ask('latest', start=None, rows=None, bytes=None));"
        "import psutil; print([child.name() for child in psutil.Process(planner.pid).children(recursive=True)]);"
        "print('pyspark' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["{'n': 3}", "[]", "False"]
    assert "to the standard output" in run.stderr


def test_a_planner_answers_again_and_again_by_one_process(planner: Planner, head: Path) -> None:
    assert latest(planner) == {"n": 3}
    pid = planner.pid
    head.write_text("5")
    assert latest(planner) == {"n": 5}
    assert planner.pid == pid


def test_it_ends_with_whoever_started_it(head: Path) -> None:
    ask = (
        "import json, os; from airflow_provider_microbatch.sources.python.resident import Planner;"
        f"planner = Planner(json.loads({json.dumps(json.dumps(opening(head)))}));"
        "planner.ask('initial'); print(planner.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    run = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    assert run.returncode == -9
    pid = int(run.stdout)
    wait_until(lambda: gone(pid))


def test_one_that_was_killed_is_started_again(planner: Planner) -> None:
    latest(planner)
    assert planner.pid is not None
    process = psutil.Process(planner.pid)
    process.kill()
    wait_until(lambda: planner.pid is None)
    assert latest(planner) == {"n": 3}


def test_what_the_users_code_raises_is_told_with_its_place(opened: Any, head: Path) -> None:
    source = opened(PythonSource("number_streams:Numbers", options={"path": str(head)}))
    head.write_text("three")
    with pytest.raises(SourceError, match=r"source 'orders': number_streams:Numbers: .*ValueError.*three") as raised:
        source.has_new(None)
    assert "in head" in "".join(raised.value.__notes__)
    head.write_text("4")
    assert source.has_new(None)


class Interrupted(BaseException):
    """Airflow's timeout, as a signal's handler raises it."""


def test_an_answer_that_nobody_waited_for_is_not_taken_for_another(
    planner: Planner, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest(planner)
    process = planner._running()
    with monkeypatch.context() as patched:
        stdout: Any = process.stdout

        class Stopped:
            def fileno(self) -> int:
                return int(stdout.fileno())

            def readline(self) -> str:
                raise Interrupted

            def close(self) -> None:
                stdout.close()

        patched.setattr(process, "stdout", Stopped())
        with pytest.raises(Interrupted):
            latest(planner)
    head.write_text("7")
    assert planner.ask("initial") == {"n": 0}
    assert latest(planner) == {"n": 7}


def test_an_answer_that_does_not_come_is_not_waited_for_without_end(
    head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks next waits for the one who waits."""
    planner = Planner(opening(head, "LostAnswers"))
    assert latest(planner) == {"n": 3}
    monkeypatch.setattr(resident, "ANSWER_SECONDS", 0.5)
    head.write_text("lost")
    with pytest.raises(SourceError, match=r"cannot be asked for latest: .*no answer for 0 minutes"):
        latest(planner)
    monkeypatch.undo()
    head.write_text("4")
    assert latest(planner) == {"n": 4}
    planner.close()


def test_who_looks_after_a_cancelled_look_does_not_wait_for_its_answer(
    opened: Any, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sensor's trigger times out, or is cleared, while a look of it hangs in a thread that nothing can end."""
    source = PythonSource("number_streams:LostAnswers", options={"path": str(head)})
    asked, errors = threading.Event(), list[Exception]()
    ask = Planner._exchange

    def exchange(planner: Planner, question: dict[str, Any]) -> Any:
        asked.set()
        return ask(planner, question)

    monkeypatch.setattr(Planner, "_exchange", exchange)

    @lifetime()
    def look() -> None:
        try:
            opened(source).has_new(None)
        except Exception as error:
            errors.append(error)

    head.write_text("lost")
    with lifetime():  # the trigger's, which ends where that is cancelled
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(look,), daemon=True)
        thread.start()
        assert asked.wait(30)
    thread.join(20)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [SourceError]
    head.write_text("4")
    with lifetime():
        assert opened(source).has_new(None)


def test_all_who_ask_share_one_and_it_ends_when_nobody_holds_it(head: Path) -> None:
    residents = Residents(idle_seconds=0.05)
    one, let_go = residents.hold(opening(head))
    other, let_go_too = residents.hold(opening(head))
    assert one is other
    threads = [threading.Thread(target=latest, args=(one,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pid = one.pid
    assert pid is not None
    let_go()
    assert one.pid == pid
    let_go_too()
    wait_until(lambda: gone(pid))
    again, let_go = residents.hold(opening(head))
    assert again is not one
    let_go()


def test_a_second_look_finds_the_planner_of_the_first(head: Path, tmp_path: Path) -> None:
    from airflow_provider_microbatch.sources.python import open as module

    source = PythonSource("number_streams:Numbers", options={"path": str(head)})
    pids = []
    for _ in range(2):
        with lifetime():
            store = PosixStore(tmp_path / "checkpoint")
            opened = source.open(SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0))
            assert opened.has_new(None)
            assert isinstance(opened, module.OpenPythonSource)
            pids.append(opened._planner.pid)
    assert pids[0] == pids[1]


def test_one_that_counts_how_often_it_is_asked_is_refused_before_it_reads_twice(opened: Any, head: Path) -> None:
    source = opened(PythonSource("number_streams:CountsItsCalls", options={"path": str(head), "other": "1"}))
    assert source.latest_offset('{"n": 1}') == '{"n": 2}'
    with pytest.raises(SourceError, match="not count how often it was asked"):
        source.latest_offset('{"n": 10}')


def test_a_class_that_only_a_checkpoint_names_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_microbatch import settings

    flag = tmp_path / "imported"
    (tmp_path / "strange.py").write_text(f"open({str(flag)!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    source = PythonSource("strange:Source")
    pipeline = Pipeline("orders", checkpoint=str(tmp_path / "c"), sources={"orders": source},
                        sink=FileSink(str(tmp_path / "lake")))  # fmt: skip
    with pytest.raises(UntrustedError, match="trusted_modules = strange"):
        Pipeline.from_dict(json.loads(json.dumps(pipeline.to_dict())), any_server=True)
    monkeypatch.setattr(settings, "_given", lambda: Settings(trusted_modules=("strange",)))
    assert Definition.from_dict(source.to_dict()) == source
    assert not flag.exists()


def test_where_the_module_is_missing_somebody_else_has_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_microbatch import settings

    monkeypatch.setattr(settings, "_given", lambda: Settings(trusted_modules=("of_the_bundle",)))
    with pytest.raises(DefinitionError, match="no module 'of_the_bundle' here"):
        Source.from_dict(PythonSource("of_the_bundle:Stream").to_dict())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"source": "number_streams"}, "as 'module:Class'"),
        ({"options": {"path": 1}}, "must be texts"),
        ({"options": {"password": "hunter2"}}, "password"),
        ({"schema": ""}, "schema"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        PythonSource(**{"source": "number_streams:Numbers", **arguments})


def test_the_registry_knows_it() -> None:
    assert SOURCES.load("python") is PythonSource


@pytest.mark.parametrize(
    ("one", "other", "after"),
    [
        ({"n": 2}, {"n": 1}, True),
        ({"n": 1}, {"n": 2}, False),
        ({"n": 1}, {"n": 1}, False),
        ({"a": 1, "b": [2, 3]}, {"a": 1, "b": [2, 2]}, True),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}, None),
        ({"file": "b", "n": 0}, {"file": "a", "n": 9}, None),
        ({"file": "a", "n": 9}, {"file": "a", "n": 8}, True),
        ({"n": 1}, {"m": 1}, None),
        ({"n": True}, {"n": 0}, None),
    ],
)
def test_order_is_told_only_where_it_is_beyond_doubt(one: Any, other: Any, after: bool | None) -> None:
    assert is_after(one, other) is after


def test_a_plan_does_not_need_what_lies_before_its_position_any_more(opened: Any, head: Path) -> None:
    source = opened(PythonSource("number_streams:ShortNumbers", options={"path": str(head)}))
    source.check()
    assert source.latest_offset('{"n": 2}') == '{"n": 3}'
    head.unlink()
    with pytest.raises(SourceError, match="head"):
        source.check()
