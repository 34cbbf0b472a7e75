"""What a job graph splits into: the cases of SeaTunnel's proposal, and what nobody should be able to write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.flow import FlowStep, PipelineFlow
from airflow_provider_microbatch.graph import JobGraph
from airflow_provider_microbatch.graph.node import Node
from airflow_provider_microbatch.sources.kafka import KafkaSource


def reads(name: str) -> FileSource:
    return FileSource(f"/data/landing/{name}", schema="id long")


def writes(name: str) -> FileSink:
    return FileSink(f"/data/lake/{name}")


def parts(graph: JobGraph) -> dict[str, tuple[list[str], list[str]]]:
    """Sources and sinks of each pipeline."""
    return {name: (list(one.sources), list(graph.sinks_of(name))) for name, one in graph.by_name().items()}


def two_tables(job: JobGraph) -> None:
    for name in ("orders", "users"):
        job.sink(name, job.source(name, reads(name)), writes(name))


def two_sources_in_a_union(job: JobGraph) -> None:
    users, guests = job.source("users", reads("users")), job.source("guests", reads("guests"))
    job.sink("people", job.union(users, guests), writes("people"))


def one_source_to_two_sinks(job: JobGraph) -> None:
    orders = job.source("orders", reads("orders"))
    job.sink("orders", job.transform(orders, "jobs/orders.py:clean"), writes("orders"))
    job.sink("raw", orders, writes("raw"))


def a_transform_of_two_sources(job: JobGraph) -> None:
    orders, users = job.source("orders", reads("orders")), job.source("users", reads("users"))
    job.sink("named", job.transform(orders, users, "jobs/orders.py:join"), writes("named"))


def a_chain_beside_a_pair(job: JobGraph) -> None:
    two_sources_in_a_union(job)
    one_source_to_two_sinks(job)


def two_kafka_tables(job: JobGraph) -> None:
    """The proposal's first case: two topics into two tables, read by two and by one."""
    for number, parallelism in ((1, 2), (2, 1)):
        topic = KafkaSource(conn_id="kafka", topics=[f"topic{number}"], packages=[])
        job.sink(f"hdfs{number}", job.source(f"kafka{number}", topic, parallelism=parallelism), writes(f"{number}"))


def sharded_databases(job: JobGraph) -> None:
    """Its second: the shards of one table, which are brought together."""
    shards = (job.source(f"mysql{number}", reads(f"{number}"), parallelism=number) for number in (1, 2, 3))
    job.sink("all", job.repartition(job.union(*shards), 4), writes("all"))


def a_diamond(job: JobGraph) -> None:
    orders = job.source("orders", reads("orders"))
    sides = [job.transform(orders, f"jobs/orders.py:{name}") for name in ("left", "right")]
    job.sink("both", job.union(*sides), writes("both"))


@pytest.mark.parametrize(
    ("write", "split"),
    [
        (two_kafka_tables, {"hdfs1": (["kafka1"], ["hdfs1"]), "hdfs2": (["kafka2"], ["hdfs2"])}),
        (sharded_databases, {"all": (["mysql1", "mysql2", "mysql3"], ["all"])}),
        (a_diamond, {"both": (["orders"], ["both"])}),
        (two_tables, {"orders": (["orders"], ["orders"]), "users": (["users"], ["users"])}),
        (two_sources_in_a_union, {"people": (["users", "guests"], ["people"])}),
        (one_source_to_two_sinks, {"orders": (["orders"], ["orders", "raw"])}),
        (a_transform_of_two_sources, {"named": (["orders", "users"], ["named"])}),
        (
            a_chain_beside_a_pair,
            {"people": (["users", "guests"], ["people"]), "orders": (["orders"], ["orders", "raw"])},
        ),
    ],
)
def test_a_job_splits_into_its_connected_parts(
    write: Callable[[JobGraph], None], split: dict[str, tuple[list[str], list[str]]]
) -> None:
    with JobGraph("shop", checkpoint="/data/checkpoints/shop") as job:
        write(job)
    assert parts(job) == split
    assert [one.checkpoint for one in job.pipelines] == [f"/data/checkpoints/shop/{name}" for name in split]
    for pipeline in job.pipelines:
        assert Pipeline.from_dict(json.loads(json.dumps(pipeline.to_dict()))) == pipeline


def test_one_function_for_one_table_is_the_pipeline_that_one_writes_by_hand() -> None:
    with JobGraph("shop", checkpoint="/data/checkpoints/shop", on_failure="set_aside") as job:
        orders = job.source("orders", reads("orders"))
        job.sink("orders", job.transform(orders, "jobs/orders.py:clean"), writes("orders"))
        job.configure("orders", min_batches_to_retain=100)
    assert job.pipelines == (
        Pipeline(
            "shop.orders",
            checkpoint="/data/checkpoints/shop/orders",
            sources={"orders": reads("orders")},
            transform="jobs/orders.py:clean",
            sink=writes("orders"),
            on_failure="set_aside",
            min_batches_to_retain=100,
        ),
    )


def test_a_union_divides_its_rows_only_where_they_do_not_come_divided_like_that() -> None:
    def of(parallelism: int) -> int | None:
        job = JobGraph("shop", checkpoint="/data/checkpoints/shop")
        users = job.source("users", reads("users"), parallelism=2)
        guests = job.source("guests", reads("guests"), parallelism=3)
        job.sink("people", job.union(users, guests, parallelism=parallelism), writes("people"))
        (pipeline,) = job.pipelines
        flow = pipeline.transform
        assert isinstance(flow, PipelineFlow)
        assert flow.partitions == {"users": 2, "guests": 3}
        (step,) = flow.steps
        return step.partitions

    assert (of(5), of(4)) == (None, 4)


def a_source_that_nobody_writes(job: JobGraph) -> None:
    two_tables(job)
    job.source("lost", reads("lost"))


def a_transform_that_nobody_writes(job: JobGraph) -> None:
    orders = job.source("orders", reads("orders"))
    job.sink("orders", orders, writes("orders"))
    job.transform(orders, "jobs/orders.py:clean")


def two_pipelines_of_one_table(job: JobGraph) -> None:
    for name in ("orders", "users"):
        job.sink(name, job.source(name, reads(name)), writes("one"))


def a_table_within_another(job: JobGraph) -> None:
    for name in ("orders", "users"):
        job.sink(name, job.source(name, reads(name)), writes(f"one{'/two' * (name == 'users')}"))


def two_nodes_of_one_name(job: JobGraph) -> None:
    job.source("orders", reads("orders"))
    job.source("orders", reads("users"))


def a_node_of_another_graph(job: JobGraph) -> None:
    other = JobGraph("other", checkpoint="/data/checkpoints/other")
    job.sink("orders", other.source("orders", reads("orders")), writes("orders"))


def a_union_of_one(job: JobGraph) -> None:
    orders = job.source("orders", reads("orders"))
    job.sink("orders", job.union(orders, orders), writes("orders"))


def two_names_for_one_pipeline(job: JobGraph) -> None:
    orders = job.source("orders", reads("orders"))
    job.sink("orders", orders, writes("orders"), pipeline="one")
    job.sink("raw", orders, writes("raw"), pipeline="two")


def one_name_for_two_pipelines(job: JobGraph) -> None:
    for name in ("orders", "users"):
        job.sink(name, job.source(name, reads(name)), writes(name), pipeline="all")


def a_pipeline_that_is_not_there(job: JobGraph) -> None:
    two_tables(job)
    job.configure("people", on_failure="set_aside")


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda job: None, "job 'shop' has no sink"),
        (a_source_that_nobody_writes, "'lost' flows into no sink"),
        (a_transform_that_nobody_writes, "'clean' flows into no sink"),
        (two_pipelines_of_one_table, "sinks 'orders' and 'users' write to one table"),
        (a_table_within_another, "sinks 'orders' and 'users' write to one table, or one within the other's"),
        (two_nodes_of_one_name, "two nodes are called 'orders'"),
        (a_node_of_another_graph, "'orders', which flows into 'orders', is another graph's"),
        (a_union_of_one, "is of two nodes or more, each once"),
        (two_names_for_one_pipeline, "are of one pipeline, since their rows have a source in common"),
        (one_name_for_two_pipelines, "have nothing in common, and both say that their pipeline is 'all'"),
        (a_pipeline_that_is_not_there, "there is no pipeline 'people' to configure; there are 'orders', 'users'"),
    ],
)
def test_what_cannot_run_is_refused_when_the_file_is_parsed(write: Callable[[JobGraph], None], said: str) -> None:
    with pytest.raises(DefinitionError) as refused, JobGraph("shop", checkpoint="/data/checkpoints/shop") as job:
        write(job)
    assert said in str(refused.value)


def test_an_error_inside_the_block_is_not_hidden_by_an_unfinished_graph() -> None:
    def write() -> None:
        with JobGraph("shop", checkpoint="/data/checkpoints/shop") as job:
            job.source("orders", reads("orders"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()


@given(
    st.lists(
        st.tuples(st.sampled_from(["source", "union", "transform"]), st.sets(st.integers(0, 30), max_size=3)),
        min_size=1,
        max_size=12,
    )
)
def test_every_node_is_in_one_pipeline_and_what_flows_together_is_together(
    drawn: list[tuple[str, set[int]]],
) -> None:
    job = JobGraph("shop", checkpoint="/data/checkpoints/shop")
    nodes: list[Node] = []
    for number, (kind, others) in enumerate(drawn):
        given_nodes = [nodes[one % len(nodes)] for one in others] if nodes else []
        unique = list({one.name: one for one in given_nodes}.values())
        name = f"n{number}"
        if kind == "union" and len(unique) > 1:
            nodes.append(job.union(*unique, name=name))
        elif kind == "transform" and unique:
            nodes.append(job.transform(*unique, "jobs/orders.py:clean", name=name))
        else:
            nodes.append(job.source(name, reads(name)))
    used = {name for node in nodes for name in node.inputs}
    for node in nodes:
        if node.name not in used:
            job.sink(f"s-{node.name}", node, writes(node.name))
    placed = [name for one in job.pipelines for name in one.sources]
    assert sorted(placed) == sorted(node.name for node in nodes if node.source is not None)
    # Who reaches whom, in either direction, is told by a walk that knows nothing of the split.
    near = {node.name: {*node.inputs, *(one.name for one in nodes if node.name in one.inputs)} for node in nodes}
    for name, pipeline in job.by_name().items():
        reached = {job_node.name for job_node in nodes if f"s-{job_node.name}" in job.sinks_of(name)}
        while more := {other for one in reached for other in near[one]} - reached:
            reached |= more
        assert set(pipeline.sources) == {one.name for one in nodes if one.source is not None and one.name in reached}
        assert set(job.sinks_of(name)) == {f"s-{one}" for one in reached if one not in used}


def test_a_flow_that_somebody_wrote_by_hand_leads_from_sources_to_sinks() -> None:
    for steps, outputs, said in (
        ([{"name": "a", "inputs": ["orders"]}], {"": "b"}, "sink '' is given 'b', which is not there"),
        ([{"name": "a", "inputs": ["nobody"]}], {"": "a"}, "'nobody' flows into 'a' and is not there before it"),
        ([{"name": "orders", "inputs": ["orders"]}], {"": "orders"}, "two are called 'orders'"),
        ([{"name": "a", "inputs": ["orders"]}], {"x": "a"}, "the flow ends in ['x'], the sinks are []"),
    ):
        with pytest.raises(DefinitionError) as refused:
            Pipeline(
                "shop",
                checkpoint="/data/checkpoints/shop",
                sources={"orders": reads("orders")},
                sink=writes("orders"),
                transform=PipelineFlow([FlowStep(**step) for step in steps], outputs),
            )
        assert said in str(refused.value)


def test_making_one_touches_nothing(tmp_path: Path) -> None:
    with JobGraph("shop", checkpoint=str(tmp_path / "checkpoints")) as job:
        job.sink("orders", job.source("orders", FileSource(str(tmp_path / "in"))), FileSink(str(tmp_path / "out")))
    assert list(tmp_path.iterdir()) == []
