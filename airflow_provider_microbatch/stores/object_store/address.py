"""The address of a place in an object store, as a user writes it into a pipeline."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Self

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores import check_path

_URL = re.compile(r"(?P<scheme>[a-z0-9]+)://(?:(?P<conn_id>[^@/]*)@)?(?P<bucket>[^@/]+)(?:/(?P<prefix>.*))?", re.DOTALL)
_CONN_ID = re.compile(r"[A-Za-z0-9_.#-]+")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_UNORDERED = "--x-s3"
"""The ending of the name of an S3 Express directory bucket."""

S3, GCS, AZURE = "s3", "gs", "abfs"
_SCHEMES = {"s3": S3, "s3a": S3, "gs": GCS, "abfs": AZURE}


@dataclass(frozen=True, kw_only=True)
class Address:
    """A folder of a bucket.

    :param scheme: scheme of the service: ``s3``, ``gs`` or ``abfs``.
    :param conn_id: id of the Airflow connection with the credentials; None for the credentials of the environment.
    :param bucket: name of the bucket; on Azure the name of the container.
    :param prefix: prefix of the keys, without a slash at either end; never empty.
    :param of: the kind of data at the address, for messages.
    """

    scheme: str
    conn_id: str | None
    bucket: str
    prefix: str
    of: str = field(default="checkpoint", compare=False)

    @classmethod
    def parse(cls, location: str, *, of: str = "checkpoint") -> Self:
        """Parse ``s3://conn_id@bucket/prefix``, or the same without ``conn_id@``. ``s3a``, Spark's word for S3, becomes
        ``s3``.

        :param of: the kind of data at the address, for messages.
        :raises CheckpointError: if the text is not an address. The message does not repeat text that might be a
            password.
        """
        found = _URL.fullmatch(location)
        scheme = _SCHEMES.get(found["scheme"]) if found else None
        if found is None or scheme is None:
            raise CheckpointError(_form(location.partition("://")[0]))
        conn_id, bucket, prefix = found["conn_id"], found["bucket"], (found["prefix"] or "").strip("/")
        if conn_id is not None and not _CONN_ID.fullmatch(conn_id):
            raise CheckpointError(
                f"{_form(scheme)} What stands before '@' is the id of an Airflow connection, and no key or password: "
                "keep those in the connection."
            )
        if bucket.endswith((".dfs.core.windows.net", ".blob.core.windows.net")):
            raise CheckpointError(
                f"{_form(scheme)} {bucket!r} is a storage account: name the container, and the account in the "
                "connection (type wasb, login)."
            )
        if not _BUCKET.fullmatch(bucket):
            raise CheckpointError(f"{bucket!r:.100} is no name of a bucket. {_form(scheme)}")
        if scheme == S3 and (told := why_unordered(bucket)) is not None:
            raise CheckpointError(told)
        if not prefix:
            raise CheckpointError(
                f"a {of} needs a folder of its own in bucket {bucket!r}, such as "
                f"{cls(scheme=scheme, conn_id=conn_id, bucket=bucket, prefix=f'{of}s/orders')}."
            )
        return cls(scheme=scheme, conn_id=conn_id, bucket=bucket, prefix=check_path(prefix), of=of)

    def __str__(self) -> str:
        return f"{self.scheme}://{'' if self.conn_id is None else f'{self.conn_id}@'}{self.bucket}/{self.prefix}"

    @property
    def place(self) -> str:
        """The address without the connection: the folder is the same whichever connection leads to it."""
        return f"{self.bucket}/{self.prefix}"

    @property
    def who(self) -> str:
        """The credentials in use, for messages."""
        return "the environment's credentials" if self.conn_id is None else f"connection {self.conn_id!r}"

    @property
    def for_spark(self) -> str | None:
        """The same folder as Hadoop's file systems name it, for Spark's own credentials. None on Azure, where the
        address includes the account, which only the connection knows."""
        return {S3: f"s3a://{self.bucket}/{self.prefix}", GCS: f"gs://{self.bucket}/{self.prefix}"}.get(self.scheme)


def why_unordered(bucket: str) -> str | None:
    """Why no listing of a bucket of S3 is relied on; None if one can be, as far as the bucket's name tells."""
    if not bucket.endswith(_UNORDERED):
        return None
    return (
        f"bucket {bucket!r} is a directory bucket, whose listings have no order: objects would be passed over there, "
        "and a log's end not be found. Use a general purpose bucket."
    )


def _form(scheme: str) -> str:
    known = scheme if scheme in _SCHEMES else "s3"
    return (
        f"Write the address as {known}://conn_id@bucket/prefix, or {known}://bucket/prefix for the environment's "
        "credentials."
    )
