"""Failures of requests: whether to repeat the request, and what a person can do.

The library describes a failure in a text that includes the service's XML. The text may hold a token, and an address may
hold a signature, so only a code, a status and one masked sentence are passed on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_REDIRECT = "redirect without LOCATION"
"""The library's text for a 301 of S3, which says that the bucket is in another region and not in which."""
_BEYOND = "StartTooLarge"
"""The library's word where a service answers a range beyond the end with something else than 416, as Azurite does."""
_STATUS = re.compile(r"(?:status code: |\(code: )(\d{3})")
"""The second form is that of one deletion among many, on Azure."""
_CODE = re.compile(r"<Code>(\w{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
_KIND = re.compile(r"kind: (\w{1,40})")
_KEY = re.compile(r'Path "(.{1,1024}?)"(?: contained |: Encountered )', re.DOTALL)
_NOBODY = ("169.254.169.254", "metadata.google.internal")
"""Addresses from which a machine in a cloud gets its identity: requested only if nothing else names credentials. Those
of containers (169.254.170.2 and .23) are named by the environment."""

_PASSING_STATUS = frozenset({408, 409, 429, 500, 502, 503, 504})
_PASSING_CODES = frozenset({"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "ServerBusy"})
_TOO_LATE = "not valid in the specified time frame"
"""Azure's words for a SAS token that has expired; the code is that of a wrong key."""
_EXPIRED = frozenset({"ExpiredToken", "TokenRefreshRequired", "InvalidToken", "ExpiredTokenException"})
_WRONG_KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthenticationFailed"})
_WRONG_PLACE = frozenset(
    {"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})


def refused_key(error: BaseException) -> str | None:
    """The key that the library's error is about, if the library does not accept it as a path; it may be the key of an
    object in a listing. None if the error is about something else."""
    found = _KEY.search(str(error))
    return found[1] if found else None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """:param status: HTTP status; None if there was no answer, or only a part of one.
    :param code: the service's error code; empty if the answer had none, such as the answer to a HEAD request.
    :param message: the service's sentence, for people.
    :param nobody: whether the machine's identity was requested, since nothing else names credentials, and there is
        none, as far as can be told: its service gave no answer, or one that does not pass.
    :param malformed: whether the request could not be built.
    :param expired: whether the token has expired.
    """

    status: int | None
    code: str = ""
    message: str = ""
    nobody: bool = False
    malformed: bool = False
    expired: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Parse the text of the library's error."""
        text = str(error)
        status, code, message, kind = (found.search(text) for found in (_STATUS, _CODE, _MESSAGE, _KIND))
        if _BEYOND in text:
            return cls(status=None, code=_BEYOND)
        number = int(status[1]) if status else 301 if _REDIRECT in text else None
        return cls(
            status=number,
            code=code[1] if code else "" if status or kind is None or _REDIRECT in text else kind[1],
            # Azure's sentence is followed by lines with the request's id and its time.
            message=message[1].partition("\n")[0] if message else "",
            nobody=number not in _PASSING_STATUS and any(place in text for place in _NOBODY),
            malformed="builder error" in text,
            expired=_TOO_LATE in text or (code is not None and code[1] in _EXPIRED),
        )

    @property
    def is_passing(self) -> bool:
        """Whether to repeat the request. The request may have been done nevertheless."""
        if self.malformed:
            return False
        return self.status is None or self.status in _PASSING_STATUS or self.code in _PASSING_CODES

    @property
    def is_of_credentials(self) -> bool:
        """Whether newer credentials may help. The request was not done."""
        return (
            self.expired
            or self.code in _WRONG_KEYS
            or self.status in (401, 403)
            or (self.status == 400 and not self.code)
        )

    @property
    def is_beyond_the_end(self) -> bool:
        """Whether the requested part begins at or after the end of the object."""
        return self.status == 416 or self.code in ("InvalidRange", _BEYOND)

    @property
    def is_no_bucket(self) -> bool:
        """Whether the bucket is missing."""
        return self.code in _NO_BUCKET

    def words(self, *, secrets: Iterable[str] = ()) -> str:
        """Return the failure in short."""
        said = self.message
        for secret in secrets:
            said = said.replace(secret, "***") if secret else said
        if self.status is None:
            return f"there was no whole answer ({self.code})" if self.code else "there was no whole answer"
        return f"{self.code or 'refused'} (HTTP {self.status}){f': {said}' if said else ''}".rstrip(".")

    def remedy(self, *, bucket: str, who: str) -> str:
        """Return advice for the user."""
        if self.nobody:
            return (
                f"Nothing names credentials for bucket {bucket!r}: write the address with a connection "
                "(s3://conn_id@bucket/prefix), or set them in the environment of every worker."
            )
        if self.malformed:
            return f"The endpoint that {who} names is no address of a service: write it as https://host:port."
        if self.is_no_bucket:
            return f"There is no bucket {bucket!r}: make it, or correct the address."
        if self.expired:
            return f"The token of {who} has expired: renew it there. What waits goes on with the next try."
        if self.code == "RequestTimeTooSkewed":
            return "The clock of this machine is off by more than the service bears: let NTP set it."
        if self.code in _WRONG_KEYS:
            return f"The keys of {who} are not those that the service knows: correct them there."
        if self.code in _WRONG_PLACE or self.status in (301, 307):
            return (
                f"Bucket {bucket!r} is in another region, or at another endpoint, than {who} names: correct it there."
            )
        if self.status in (401, 403):
            return (
                f"Give {who} the rights to list bucket {bucket!r}, and to get, put and delete objects below the "
                "prefix of the address (docs/object-stores.md), and see that its token has not expired."
            )
        if self.status == 501 or self.code == "NotImplemented":
            return "The service lacks what was asked for. Use one that has conditional writes (docs/object-stores.md)."
        if self.is_passing:
            return (
                "It was asked again until patience ran out. See that the service answers; then let the task run again."
            )
        return f"See what bucket {bucket!r} and {who} allow."
