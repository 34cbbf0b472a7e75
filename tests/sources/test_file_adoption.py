"""Taking over the source log of a running Structured Streaming query, compacted entries included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceChangedError, SourceError
from tests.sources.support import World


def line(path: Path, number: int) -> str:
    timestamp = path.stat().st_mtime_ns // 1_000_000
    return json.dumps({"path": f"file://{path}", "timestamp": timestamp, "batchId": number}, separators=(",", ":"))


def adopted(world: World, last: int, *, keep_deltas_from: int = 0) -> list[Path]:
    """What Spark leaves after log ids 0 to ``last``, a file each: every tenth is compacted, deltas may be gone."""
    files = [world.land(f"{number}.json", age=1000 - number) for number in range(last + 1)]
    for number in range(last + 1):
        if number % 10 == 9:
            lines = [line(path, index) for index, path in enumerate(files[: number + 1])]
            world.log.put_if_absent(f"{number}.compact", "\n".join(["v1", *lines]).encode())
        elif number >= keep_deltas_from:
            world.log.put_if_absent(str(number), f"v1\n{line(files[number], number)}".encode())
    return files


@pytest.mark.parametrize(("last", "keep"), [(3, 0), (9, 0), (9, 9), (12, 10), (24, 0), (24, 20), (29, 29)])
def test_nothing_that_spark_planned_is_new_and_we_go_on_after_it(world: World, last: int, keep: int) -> None:
    adopted(world, last, keep_deltas_from=keep)
    position = f'{{"logOffset":{last}}}'
    assert not world.open().has_new(position)
    assert world.open().latest_offset(position) == position
    world.land("new.json")
    source = world.open()
    end = source.latest_offset(position)
    assert end == f'{{"logOffset":{last + 1}}}'
    assert world.names(source.read(position, end)) == ["new.json"]
    assert world.log.get(str(last + 1)) is not None
    world.land("newer.json")
    assert world.names(world.open().read(end, world.open().latest_offset(end))) == ["newer.json"]


@pytest.mark.parametrize("keep", [0, 10, 20])
def test_each_range_that_spark_planned_can_be_read_alone(world: World, keep: int) -> None:
    adopted(world, 24, keep_deltas_from=keep)
    source = world.open()
    assert world.names(source.read(None, '{"logOffset":0}')) == ["0.json"]
    assert world.names(source.read('{"logOffset":8}', '{"logOffset":9}')) == ["9.json"]
    assert world.names(source.read('{"logOffset":9}', '{"logOffset":11}')) == ["10.json", "11.json"]
    assert world.names(source.read('{"logOffset":17}', '{"logOffset":21}')) == [f"{n}.json" for n in range(18, 22)]
    assert source.in_words('{"logOffset":8}', '{"logOffset":9}') == {"files": 1}


def test_an_entry_that_spark_planned_and_did_not_log_is_taken_up(world: World) -> None:
    adopted(world, 9)
    source = world.open()
    assert source.has_new('{"logOffset":8}')
    assert source.latest_offset('{"logOffset":8}') == '{"logOffset":9}'


def test_files_of_spark_are_compared_by_what_it_wrote(world: World) -> None:
    files = adopted(world, 1)
    source = world.open()
    source.read(None, '{"logOffset":1}')
    world.land("1.json", age=1)
    with pytest.raises(SourceChangedError, match=str(files[1])):
        source.read(None, '{"logOffset":1}')


def test_what_is_no_entry_is_passed_over(world: World) -> None:
    adopted(world, 1)
    folder = Path(world.log.location)
    for name in (".0.crc", ".2.tmp", "2.tmp", "02", "x", "3.compact.tmp"):
        (folder / name).write_text("x")
    assert not world.open().has_new('{"logOffset":1}')


def test_a_missing_entry_is_named(world: World) -> None:
    adopted(world, 12, keep_deltas_from=12)
    with pytest.raises(CorruptEntryError, match=r"sources/orders has no entry 11"):
        world.open().read('{"logOffset":10}', '{"logOffset":11}')


def test_a_log_of_another_file_system_is_refused(world: World) -> None:
    world.log.put_if_absent("0", b'v1\n{"path":"s3a://bucket/a.json","timestamp":1,"batchId":0}')
    with pytest.raises(SourceError, match=r"s3a://bucket/a\.json"):
        world.open().has_new('{"logOffset":0}')


def test_a_long_lived_sensor_sees_an_entry_that_spark_compacts(world: World) -> None:
    adopted(world, 8)
    polled = world.open()
    assert not polled.has_new('{"logOffset":8}')
    adopted(world, 9)
    assert polled.has_new('{"logOffset":8}')
    assert not polled.has_new('{"logOffset":9}')
