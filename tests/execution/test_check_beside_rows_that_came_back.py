"""What ``microbatch check`` tells of batches beside rows that a RESTORE has brought back over a ``rewind``."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.test_restore_over_a_rewind import Counted, is_refused, three_batches, undone


def test_the_rewind_is_named_first_and_no_clear_that_is_refused_until_then(tmp_path: Path) -> None:
    def more() -> None:
        for head in (8, 9, 10):
            world.batch(head)

    world = Counted(tmp_path)
    three_batches(world)
    world.batch(7)
    undone(world, 1, more)
    told = is_refused(world, lambda: world.run(50))
    first, *others = check_table(world.checkpoint, everything=True).findings
    assert first.message == told
    assert told not in {one.message for one in others}
    assert {one.repair for one in others} == {"First what is said above of rows that came back; then check again."}
