"""``microbatch state``: show the state that a stateful pipeline keeps from batch to batch. The command starts a Spark
of this process; the checkpoint is only read."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import is_whole
from airflow_provider_microbatch.cli.opening import open_checkpoint
from airflow_provider_microbatch.cli.setting import positive
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.upkeep.kept_state import KeptState, kept_state

if TYPE_CHECKING:
    from airflow_provider_microbatch.runtime.kept_state import StateStore

NAME = "state"
HELP = "show what a stateful pipeline keeps: rows, bytes and oldest event by operator; changes nothing"

_OF_ALL = ("key", "partition_id")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    parser.add_argument("--batch", type=int, metavar="N", help="after which batch (default: the newest committed one)")
    parser.add_argument(
        "--key",
        action="append",
        type=_key,
        default=[],
        metavar="NAME=VALUE",
        help="show the rows of this key; may be given for each of its columns",
    )
    parser.add_argument(
        "--rows", type=positive, default=20, metavar="N", help="so many rows of a key at most (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the state.

    :return: exit status, always 0.
    :raises CheckpointError: if there is no such state, or Spark cannot read it.
    """
    checkpoint = open_checkpoint(arguments.location, sources=arguments.sources)
    kept = kept_state(checkpoint, arguments.batch)
    told = {"batch": str(kept.key), "nextWatermark": _time(kept.state.watermark_ms)}
    if arguments.json:
        print(json.dumps({**told, "stores": _read(checkpoint, kept, arguments)}, ensure_ascii=False, indent=2))
        return 0
    print(f"state after batch {told['batch']}, from which the next batch goes on; its watermark: "
          f"{told['nextWatermark'] or '-'}")  # fmt: skip
    for one in kept.operators:
        memory = one.get("memoryUsedBytes")
        print(f"{one.get('operatorName')}: {one.get('numRowsTotal'):,} rows, {memory or 0:,} bytes of memory, by Spark")
    for found in _read(checkpoint, kept, arguments):
        print(f"operator {found['operator']} {found['name']}: {found['rows']:,} rows, oldest event "
              f"{found['oldestEvent'] or '-'}")  # fmt: skip
        for row in found.get("found", ()):
            value = row["value"] if "value" in row else {name: row[name] for name in row if name not in _OF_ALL}
            print(f"  {json.dumps(row['key'], ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}")
    return 0


def _read(checkpoint: Checkpoint, kept: KeptState, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from airflow_provider_microbatch.runtime.kept_state import opened

    keys = dict(arguments.key)
    try:
        with opened(kept.state) as stores:
            _check_columns(keys, stores)
            return [_told(store, keys, arguments.rows) for store in stores]
    except (BrokenPipeError, CheckpointError):
        raise
    except Exception as error:  # any error of Spark
        said = str(error).strip().splitlines() or [""]
        raise CheckpointError(
            f"the state of batch {kept.key} in {checkpoint.location} cannot be read: {type(error).__name__}: {said[0]}"
        ) from error


def _told(store: StateStore, keys: Mapping[str, str], rows: int) -> dict[str, Any]:
    from airflow_provider_microbatch.runtime.kept_state import as_json

    told: dict[str, Any] = {
        "operator": store.operator,
        "name": store.name,
        "rows": store.frame.count(),
        "oldestEvent": store.oldest_event(),
    }
    if not keys or not keys.keys() <= set(store.columns):
        return told
    return {**told, "found": as_json(store.rows(keys), rows=rows)}


def _check_columns(keys: Mapping[str, str], stores: Sequence[StateStore]) -> None:
    known = {store.name: store.columns for store in stores}
    if keys and not any(keys.keys() <= set(columns) for columns in known.values()):
        told = "; ".join(f"{name}: {', '.join(columns)}" for name, columns in known.items())
        raise CheckpointError(f"no operator keeps its rows by {', '.join(keys)}. Columns of keys are {told or 'none'}.")


def _key(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def _time(milliseconds: int) -> str | None:
    if not is_whole(milliseconds):
        return f"{milliseconds:,} ms after 1970, behind the year 9999"
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC).isoformat() if milliseconds else None
