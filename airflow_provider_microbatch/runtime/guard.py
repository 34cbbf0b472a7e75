"""Each call to a Spark Connect server is held back while it would tell a stranger the token (see :mod:`.listening`): a
server may die, and its port be taken, in the middle of an attempt, whose client then calls again and again."""

from __future__ import annotations

from typing import Any

import grpc  # type: ignore[import-untyped,unused-ignore]

from airflow_provider_microbatch.runtime.listening import refusal


class StrangerError(grpc.RpcError):  # type: ignore[misc,unused-ignore]
    """To its client a server whose port somebody else has is a server that is away."""

    def __init__(self, why: str) -> None:
        super().__init__(f"StatusCode.UNAVAILABLE: {why}")
        self._why = why

    def code(self) -> Any:
        """As gRPC has it."""
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        """As gRPC has it."""
        return self._why

    def trailing_metadata(self) -> tuple[()]:
        """As gRPC has it; the server said nothing."""
        return ()


class Guard(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc,unused-ignore]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc,unused-ignore]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc,unused-ignore]
):
    """Looks who listens before anything is sent.

    :param url: of the server, with the token.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """:raises StrangerError: if another user would hear it."""
        if why := refusal(self._url):
            raise StrangerError(why)
        return continuation(details, request)

    intercept_unary_stream = intercept_unary_unary
    intercept_stream_unary = intercept_unary_unary
