"""A Delta table to which the pipeline does not write any more, and that somebody puts back over a ``rewind``."""

from __future__ import annotations

from deltalake import DeltaTable

from airflow_provider_microbatch.sinks.delta import DeltaSink
from tests.execution.test_restore_over_a_rewind import Counted, ids, lake, rewound
from tests.execution.test_restore_over_a_rewind import world as world


def test_rows_in_a_table_that_the_pipeline_has_left_are_in_no_rewinds_way(world: Counted) -> None:
    for head in (2, 4, 6):
        world.batch(head)
    before, rows = lake(world).version(), ids(world)
    rewound(world, 0)
    world.rests()
    world.options["sink"] = DeltaSink(str(world.root / "other"))
    for head in (7, 8):
        world.batch(head)
    lake(world).restore(before)
    newest = world.checkpoint.offset_log.latest_id()
    assert newest is not None
    rewound(world, newest - 1)
    world.rests()
    assert sorted(DeltaTable(str(world.root / "other")).to_pyarrow_table().column("id").to_pylist()) == [7, 8]
    assert ids(world) == rows
