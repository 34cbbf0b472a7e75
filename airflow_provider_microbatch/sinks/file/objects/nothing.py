"""Files of no rows. A manifest names one where a batch has no file, for two reasons: readers of the symlink form take
no empty line, and two manifests of the same bytes would have one ETag, by which nobody could tell that one had come in
the other's place."""

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
"""As pyarrow 26 writes a table of one column, ``_`` of 32 bit integers, and no row."""


def of_format(format: str) -> bytes:
    """A file of that format without a row. Of text it has no byte."""
    return _BYTES.get(format, b"")
