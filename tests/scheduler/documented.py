"""The DAGs of README, docs and ``dags/``, as they stand there but for what a test cannot have: their folders, the hours
between two runs, and the number of slots."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WITHOUT_SPARK = """\
from tests.scheduler.documented import use_inline_engine

use_inline_engine()
"""


def blocks(page: Path) -> list[str]:
    """The examples of a page, in order."""
    return _BLOCK.findall(page.read_text())


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
    def landing(self) -> list[Path]:
        """Where its sources look."""
        return [self.folder / "landing" / name for name in set(re.findall(r"/landing/(\w+)", self.text))]

    @property
    def checkpoint(self) -> Path | None:
        """Its pipeline's; None if it makes no batches."""
        found = re.search(r"/checkpoints/(\w+)", self.text) if self.landing else None
        return self.folder / "checkpoints" / found[1] if found else None


def documented(home: Path) -> Iterator[Documented]:
    """All of them.

    :param home: below it each has a folder of its own.
    """
    readme, transform = blocks(ROOT / "README.md")
    assert transform.startswith("def transform(batch):")
    definition = readme.partition("\nwith DAG(")[0]
    yield _adapted("README", readme, home)
    for page in sorted((ROOT / "docs").glob("*.md")):
        for number, block in enumerate(block for block in blocks(page) if "with DAG(" in block):
            imports = (
                "from airflow_provider_microbatch.operators.drain import drain\n"
                "from airflow_provider_microbatch.operators.steps import micro_batch_steps\n"
            )
            yield _adapted(f"{page.stem}_{number}", f"{_WITHOUT_SPARK}{definition}\n{imports}\n{block}", home)
    for path in sorted((ROOT / "dags").glob("*.py")):
        text = path.read_text().replace("from __future__ import annotations\n", "", 1)
        text = text.replace('format="parquet"', 'format="json"')  # what the engine without a JVM writes
        yield _adapted(path.stem, f"from __future__ import annotations\n\n{_WITHOUT_SPARK}{text}", home)


def _adapted(name: str, text: str, home: Path) -> Documented:
    own = re.search(r'DAG\(\s*"(\w+)"', text)
    assert own is not None, text
    dag_id = f"{name}__{own[1]}"
    folder = home / "documented" / dag_id
    text = re.sub(r'(DAG\(\s*)"\w+"', rf'\1"{dag_id}"', text)
    text = re.sub(r'schedule="(?!@continuous)[^"]+"', 'schedule="* * * * * */10"', text)  # every ten seconds
    text = text.replace("slots=20", "slots=2")
    text = text.replace('"/data/', f'"{folder}/')
    text = text.replace('os.environ.get("MICROBATCH_HOME", "/opt/microbatch")', f'"{folder}"')
    return Documented(dag_id=dag_id, text=text.replace("{HOME}/", f"{folder}/"), folder=folder)


def use_inline_engine() -> None:
    """In the process that parses the DAG file, and in its tasks: batches run without a JVM."""
    from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
    from airflow_provider_microbatch.operators.steps import SubmitMicroBatchOperator
    from tests.support.inline_engine import InlineEngine

    for operator in (MicroBatchOperator, SubmitMicroBatchOperator):
        operator.engine = lambda self: InlineEngine()  # type: ignore[method-assign]
