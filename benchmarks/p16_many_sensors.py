"""P16: one trigger process that holds 1,000 sensors of as many pipelines, on 10 topics of one broker, none of which has
anything new. CPU of a poll, and memory of the process, beside a process that holds one sensor.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from airflow_provider_microbatch import FileSink, KafkaSource, Pipeline
from benchmarks.harness import Row, python_result
from benchmarks.read_to_the_end import read_to_the_end
from tests.support.kafka import broker

SENSORS = int(os.environ.get("P16_SENSORS", 1_000))
TOPICS = int(os.environ.get("P16_TOPICS", 10))
RUNS = int(os.environ.get("P16_RUNS", 3))
SECONDS = float(os.environ.get("P16_SECONDS", 30))
POLL_SECONDS = 10.0
ALONE_POLL_SECONDS = 0.1
"""One sensor alone looks oftener, so that its polls are as many as can be measured."""

TRIGGERS = """
import asyncio, json, sys, time
import psutil
from airflow_provider_microbatch.triggers import new_data
definitions, poll_seconds, seconds = sys.argv[1:]
looks, decide = set(), new_data.decide
count = 0
def counted(pipeline, *given, **more):
    global count
    decision = decide(pipeline, *given, **more)
    assert not decision.fire, decision
    count += 1
    looks.add(pipeline.checkpoint)
    return decision
new_data.decide = counted
async def hold(definition):
    async for event in new_data.NewDataTrigger(pipeline=definition, poll_interval=float(poll_seconds)).run():
        raise AssertionError(event.payload)
async def measured():
    with open(definitions) as lines:
        held = [asyncio.create_task(hold(json.loads(line))) for line in lines]
    while len(looks) < len(held):  # each has its client, and has looked
        await asyncio.sleep(0.1)
        for one in held:
            if one.done():
                one.result()
    before, began, busy = count, time.monotonic(), time.process_time()
    await asyncio.sleep(float(seconds))
    busy, polls = time.process_time() - busy, count - before
    process = psutil.Process()
    print(json.dumps({"cpu": busy / polls, "busy": busy / (time.monotonic() - began), "polls": polls,
                      "memory": process.memory_info().rss, "threads": process.num_threads()}))
    sys.stdout.flush()
    import os
    os._exit(0)  # who waits for a thousand tasks that are told to end measures nothing
asyncio.run(measured())
"""


def measure() -> list[Row]:
    """The rows of the table: CPU, and memory."""
    told = f"{SENSORS:,} sensors on {TOPICS} topics in one trigger process / one sensor alone"
    cpu = Row(name="P16", what=f"CPU of a poll, {told}", reach=1.5)
    memory = Row(name="P16", what=f"memory, {told}", reach=2.0, unit="bytes")
    with tempfile.TemporaryDirectory() as folder, broker() as running:
        home = Path(folder)
        topics = [running.topic() for _ in range(TOPICS)]
        for topic in topics:
            running.send(topic, ["1"])
        lines = []
        for number in range(SENSORS):
            at = home / str(number)
            source = KafkaSource(bootstrap_servers=running.address, topics=[topics[number % TOPICS]])
            read_to_the_end(f"{at}/checkpoint", source)
            pipeline = Pipeline(
                "bench", checkpoint=f"{at}/checkpoint", sources={"orders": source}, sink=FileSink(f"{at}/lake")
            )
            lines.append(json.dumps(pipeline.to_dict()))
        many, alone = home / "many", home / "alone"
        many.write_text("\n".join(lines))
        alone.write_text(lines[0])
        environment = {"AIRFLOW_HOME": f"{home}/airflow"}
        busy = list[float]()
        for _ in range(RUNS):
            ours = python_result(TRIGGERS, str(many), str(POLL_SECONDS), str(SECONDS), **environment)
            peer = python_result(TRIGGERS, str(alone), str(ALONE_POLL_SECONDS), str(min(SECONDS, 10.0)), **environment)
            busy.append(ours["busy"])
            for row, figure in ((cpu, "cpu"), (memory, "memory")):
                row.ours.append(ours[figure])
                row.peer.append(peer[figure])
    note = f"a poll of each every {POLL_SECONDS:g} s takes {100 * max(busy):.0f} % of a core"
    return [Row(**{**cpu.__dict__, "note": note}), memory]
