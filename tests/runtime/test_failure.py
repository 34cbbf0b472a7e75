"""Whose fault a failure is that Spark reports only while it writes."""

from __future__ import annotations

import grpc
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.connect import SparkConnectException, SparkConnectGrpcException

from airflow_provider_microbatch.runtime.failure import BatchFailure, failing_as


class PythonException(Exception):
    pass


def origin_of(error: BaseException, phase: str = "write") -> str:
    with pytest.raises(BatchFailure) as failure, failing_as(phase):
        raise error
    return failure.value.origin


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("[COLUMN_ALREADY_EXISTS] The column `id` already exists. SQLSTATE: 42711", "result"),
        ("[UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE] The Parquet datasource doesn't support it. SQLSTATE: 0A000", "result"),
        ("[UNSUPPORTED_FEATURE.QUERY_ONLY_CORRUPT_RECORD_COLUMN] Not supported. SQLSTATE: 0A000", "result"),
        ("[ALL_PARTITION_COLUMNS_NOT_ALLOWED] Cannot use all columns. SQLSTATE: KD005", "result"),
        ("[UNRESOLVED_COLUMN] No such column. SQLSTATE: 42703\n\nJVM stacktrace:\nx\n\tat y", "result"),
        ("Job aborted due to stage failure: [CAST_INVALID_INPUT] No number. SQLSTATE: 22018", "data"),
        ("[TASK_WRITE_FAILED] SQLSTATE: 58030 Caused by: [DIVIDE_BY_ZERO] Zero. SQLSTATE: 22012", "data"),
        ("[SCALAR_SUBQUERY_TOO_MANY_ROWS] More than one row. SQLSTATE: 21000", "data"),
        ("[DUPLICATED_MAP_KEY] Twice. SQLSTATE: 23505", "data"),
        ("[USER_RAISED_EXCEPTION] no id SQLSTATE: P0001", "data"),
        ("[MALFORMED_CSV_RECORD] Malformed. SQLSTATE: KD000", "data"),
        ("[FAILED_EXECUTE_UDF] A Scala function failed. SQLSTATE: 39000", "transform"),
        ("[FAILED_READ_FILE.NO_HINT] Error while reading file. SQLSTATE: KD001", "read"),
        ("[PATH_NOT_FOUND] Path does not exist. SQLSTATE: 42K03", "read"),
    ],
)
def test_what_is_wrong_with_the_data_or_its_schema_is_the_batchs_fault(text: str, origin: str) -> None:
    assert origin_of(Exception(text)) == origin


def test_a_function_of_the_users_is_the_transforms() -> None:
    assert origin_of(PythonException("ZeroDivisionError")) == "transform"


@pytest.mark.parametrize(
    "text",
    [
        "Job aborted due to stage failure: java.io.IOException: No space left on device",
        "[TASK_WRITE_FAILED] Task failed while writing rows. SQLSTATE: 58030 Caused by: No space left on device",
        "java.io.IOException: Mkdirs failed to create file:/lake/x (exists=false)",
        "org.apache.hadoop.security.AccessControlException: Permission denied",
        "[INSUFFICIENT_PERMISSIONS] No right to write. SQLSTATE: 42501",
        "[PATH_ALREADY_EXISTS] The stage already exists. SQLSTATE: 42K04",
        "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. SQLSTATE: 42K02",
        "[CODEC_NOT_AVAILABLE] The codec lzo is not available. SQLSTATE: 56038",
        "[INVALID_SPARK_CONFIG] Invalid. SQLSTATE: 42616",
        "[CATALOG_NOT_FOUND] No such catalog. SQLSTATE: 42P08",
        "[UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 64 bytes. SQLSTATE: 53200",
        "Job aborted: ExecutorLostFailure (executor 1 exited): java.lang.OutOfMemoryError: Java heap space",
        "[SPARK_JOB_CANCELLED] Job 3 cancelled. SQLSTATE: XXKDA",
        "[INTERNAL_ERROR] A bug of Spark's. SQLSTATE: XX000",
        "[_LEGACY_ERROR_TEMP_3065] org.apache.hadoop.hive.ql.metadata.HiveException: cannot be reached",
    ],
)
def test_what_the_place_or_the_cluster_lacks_is_not(text: str) -> None:
    assert origin_of(Exception(text)) == "write"


STACK = """org.apache.spark.SparkException
\tat org.apache.spark.sql.execution.datasources.FileFormatDataWriter.write(FileFormatDataWriter.scala:92)
Caused by: java.io.IOException: a link of the chain
\tat org.apache.spark.Somewhere.else(Somewhere.scala:1)
Caused by: org.apache.hadoop.fs.FileAlreadyExistsException: File already exists: file:/lake/x.parquet
\tat org.apache.hadoop.fs.RawLocalFileSystem.create(RawLocalFileSystem.java:421)
\t... 12 more"""
FAILED = "[TASK_WRITE_FAILED] Task failed while writing rows to file:/lake. SQLSTATE: 58030"


@pytest.mark.parametrize(
    "error",
    [
        SparkConnectGrpcException(FAILED, server_stacktrace=STACK),
        SparkConnectGrpcException(FAILED, server_stacktrace=STACK, display_server_stacktrace=True),
        Exception(f"An error occurred while calling o82.save.\n: {STACK.replace('SparkException', FAILED, 1)}"),
    ],
    ids=["Spark Connect", "which repeats the stack", "Py4J"],
)
def test_the_error_begins_with_its_first_cause_and_has_no_stack(error: BaseException) -> None:
    with pytest.raises(BatchFailure) as failure, failing_as("write"):
        raise error
    told = failure.value.error
    assert told.startswith("FileAlreadyExistsException: File already exists: file:/lake/x.parquet (")
    assert FAILED in told
    assert not [part for part in ("\tat ", "Caused by", "12 more") if part in told]
    assert failure.value.origin == "write"


def test_a_function_of_the_users_is_told_as_spark_tells_it() -> None:
    stack = "x\nCaused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n\tat y"
    with pytest.raises(BatchFailure) as failure, failing_as("write"):
        raise SparkConnectGrpcException("ValueError: no", server_stacktrace=stack)
    assert failure.value.error == "SparkConnectGrpcException: ValueError: no"


class Unavailable(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE


def hidden_by_pyspark() -> BaseException:
    """As Spark Connect's client raises what gRPC says."""
    try:
        try:
            raise Unavailable
        except grpc.RpcError:
            raise SparkConnectGrpcException("failed to connect") from None
    except SparkConnectGrpcException as error:
        return error


@pytest.mark.parametrize("phase", ["read", "transform", "write"])
@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        Unavailable(),
        hidden_by_pyspark(),
        SparkConnectGrpcException("no answer", grpc_status_code=grpc.StatusCode.UNAVAILABLE),
        SparkConnectException("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid. SQLSTATE: HY000"),
    ],
)
def test_a_driver_that_went_away_is_nobodys_fault_in_any_phase(error: BaseException, phase: str) -> None:
    assert origin_of(error, phase) == "runtime"


@pytest.mark.parametrize(
    "value", ["RetriesExceeded", "Py4JNetworkError", "StatusCode.UNAVAILABLE", "[INVALID_HANDLE.SESSION_CLOSED]"]
)
def test_a_value_of_the_data_that_speaks_of_a_lost_cluster_is_the_datas_fault(value: str) -> None:
    """Whoever delivers such a file would keep its batch from being set aside, and the pipeline standing still."""
    cast = f"[CAST_INVALID_INPUT] The value '{value}' cannot be cast to \"BIGINT\". SQLSTATE: 22018"
    assert origin_of(SparkConnectException(cast)) == "data"
    assert origin_of(AnalysisException(f"[UNRESOLVED_COLUMN] No column `{value}`. SQLSTATE: 42703")) == "result"
    assert origin_of(PythonException(f"ValueError: {value}")) == "transform"
    assert origin_of(ValueError(value), "transform") == "transform"
    assert origin_of(SparkConnectException(f"[FAILED_READ_FILE.NO_HINT] {value}.json. SQLSTATE: KD001")) == "read"
