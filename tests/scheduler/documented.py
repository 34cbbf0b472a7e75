"""The DAGs of README, docs and ``dags/``, as they stand there but for what a test cannot have: their ids, their
folders, the hours between two runs, the number of slots, and, but for the README's, a spark-submit for each batch."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

BESIDE_THE_JANITOR = {"microbatch_compact", "microbatch_janitor", "orders_table"}

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TRANSFORM = re.compile(r"^    # (jobs/\w+\.py)\n((?:    .*\n|\n)+)", re.MULTILINE)
_API = re.compile(r'os\.environ\.get\("ORDERS_API", "[^"]+"\)')
_NAMED_IN_THE_TEXT = """\
from airflow_provider_microbatch.operators.drain import drain
from airflow_provider_microbatch.operators.steps import micro_batch_steps
"""
"""What the words around the examples of docs say to import."""


@dataclass(frozen=True, kw_only=True)
class Documented:
    """One DAG of the documentation.

    :param dag_id: its page, or file, and its own id.
    :param text: the DAG file.
    :param folder: what it has for ``/data`` or ``MICROBATCH_HOME``.
    """

    dag_id: str
    text: str
    folder: Path

    @property
    def checkpoint(self) -> str:
        """The address of its pipeline's."""
        found = re.findall(r'"(s3://[^"]*-checkpoints/\w+)"', self.text) or [
            # An example that has a pipeline of its own names that last.
            f"{self.folder}/checkpoints/{name}"
            for name in re.findall(r"/checkpoints/(\w+)", self.text)
        ]
        # Those of a job lie below its own, each under the name of the pipeline's first sink; the last one is told of.
        return "/".join([found[-1], *re.findall(r'\.sink\("(\w+)"', self.text)[-1:]])

    @property
    def landings(self) -> list[str]:
        """All folders below ``landing``: a source that looks in none would fail."""
        return re.findall(r"/landing/(\w+)", self.text)

    @property
    def bucket(self) -> str | None:
        """The address of its table, if that lies in a bucket."""
        found = re.search(r'FileSink\("(s3://[^"]+)"', self.text)
        return found and found[1]

    @property
    def replaces(self) -> bool:
        """Whether its table is the newest batch, and not all of them."""
        return 'mode="create_or_replace"' in self.text


def deploy_transforms(dags: Path) -> None:
    """Put the README's transform, and those of docs, where they say: into ``jobs/`` beside their DAG files. Docs use
    the README's too; what those of ``dags/`` use lies there already."""
    _, transform = blocks(ROOT / "README.md")
    assert transform.startswith("def transform(batch):")
    (dags / "jobs" / "orders_transform.py").write_text(transform)
    for page in (ROOT / "docs").glob("*.md"):
        for name, lines in _TRANSFORM.findall(page.read_text()):
            (dags / name).write_text(textwrap.dedent(lines))


def documented(home: Path, *, api: str) -> Iterator[Documented]:
    """All that no other test here runs: a DAG of ``dags/`` may have a test of its own.

    :param home: below it each has a folder of its own; the janitor of ``dags/`` shares one, as where it is deployed.
    :param api: the URL of a server that has what lands in a folder at the folder's path.
    """
    readme, _ = blocks(ROOT / "README.md")
    yield _adapted("README", readme, home / "README", engine="spark_default")
    pipeline = readme.partition("\nwith DAG(")[0]
    for page in sorted((ROOT / "docs").glob("*.md")):
        for number, block in enumerate(block for block in blocks(page) if "DAG(" in block):
            name = f"{page.stem}_{number}"
            yield _adapted(name, f"{pipeline}\n{_NAMED_IN_THE_TEXT}\n{block}", home / name)
    for path in sorted((ROOT / "dags").glob("*.py")):
        if not (ROOT / "tests" / "scheduler" / f"test_{path.name}").exists():
            text = path.read_text()
            # Who is told of its rows looks at all tables of the folder. The janitor finds one of its checkpoints.
            folder = home / ("dags" if path.stem in BESIDE_THE_JANITOR else path.stem)
            yield _adapted("dags", _API.sub(f'"{api}{folder}/landing/polled"', text), folder)


def blocks(page: Path) -> list[str]:
    """The examples of a page, in order."""
    text = page.read_text()
    found = _BLOCK.findall(text)
    assert text.count("DAG(") == "".join(found).count("DAG("), f"{page} has a DAG outside a block of Python"
    return found


def _adapted(name: str, text: str, folder: Path, *, engine: str = "spark_connect") -> Documented:
    own = re.search(r'DAG\(\s*"(\w+)"', text)
    assert own is not None, text
    if "stateful=True" in text:
        engine = "spark_default"  # a Connect server is refused
    dag_id = f"{name}__{own[1]}"
    text = re.sub(r'(DAG\(\s*)"\w+"', rf'\1"{dag_id}"', text)
    text = re.sub(r'schedule="(?!@continuous)[^"]+"', 'schedule="* * * * * */10"', text)  # every ten seconds
    text = text.replace("slots=20", "slots=2").replace('conn_id="spark_default"', f'conn_id="{engine}"')
    text = re.sub(r'(MicroBatchOperator\(task_id="micro_batch", pipeline=\w+)\)', rf'\1, conn_id="{engine}")', text)
    text = text.replace('"/data/', f'"{folder}/')
    # Another test's topic, and another test's catalog, have these names in the one Airflow.
    text = text.replace('topics=["orders"]', 'topics=["documented"]').replace('"s3://lake@', '"s3://bucket@')
    text = text.replace('os.environ.get("MICROBATCH_HOME", "/opt/microbatch")', f'"{folder}"')
    return Documented(dag_id=dag_id, text=text, folder=folder)
