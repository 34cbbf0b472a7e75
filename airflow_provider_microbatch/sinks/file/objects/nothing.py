"""Files without rows. A manifest names such a file if a batch has no file, for two reasons: readers of the symlink form
accept no empty line, and two manifests of the same bytes would have the same ETag, which would hide that one has
replaced the other."""

from __future__ import annotations

import base64

NAME = "nothing"

_PARQUET = (
    "UEFSMRUEFQAVAEwVABUAEgAAFQQZLDUAGAZzY2hlbWEVAgAVAiUCGAFfABYAGRwZHCYAHBUCGSUABhkYAV8VABYAFhwWHCYAJggpHBUEFQAVAgAA"
    "ABYcFgAmCBYcACggcGFycXVldC1jcHAtYXJyb3cgdmVyc2lvbiAyNi4wLjEZHBwAAAB0AAAAUEFSMQ=="
)
_ORC = (
    "T1JDCAMQACIOCAwSAQEaAV8gACgAMAAiCAgDIAAoADAAMAA6BAgAUAA6CAgAEgIYAFAAQJBOSAFiBTIuMi4yCDwQABiAgAQiAgAMKAAwBoL0AwNP"
    "UkMX"
)
_BYTES = {"parquet": base64.b64decode(_PARQUET), "orc": base64.b64decode(_ORC)}
"""A table of one column, ``_`` of 32 bit integers, without rows, as pyarrow 26 writes it."""


def of_format(format: str) -> bytes:
    """A file of that format without a row; for text formats an empty file."""
    return _BYTES.get(format, b"")
