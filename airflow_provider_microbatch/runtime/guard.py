"""Holds back each call to a Spark Connect server that would tell another user the token (see :mod:`.listening`): in the
middle of an attempt, a server may die and its port be taken, while the attempt's client goes on calling."""

from __future__ import annotations

from typing import Any

import grpc  # type: ignore[import-untyped,unused-ignore]

from airflow_provider_microbatch.runtime.listening import refusal


class StrangerError(grpc.RpcError):  # type: ignore[misc,unused-ignore]
    """Another user has the server's port. The client sees the same error as for a server that is unavailable."""

    def __init__(self, why: str) -> None:
        super().__init__(f"StatusCode.UNAVAILABLE: {why}")
        self._why = why

    def code(self) -> Any:
        """The status code, as gRPC names it."""
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        """The reason, as gRPC names it."""
        return self._why

    def trailing_metadata(self) -> tuple[()]:
        """Empty, as gRPC has it for a server that did not answer."""
        return ()


class Guard(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc,unused-ignore]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc,unused-ignore]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc,unused-ignore]
):
    """Checks which user listens before anything is sent.

    :param url: URL of the server, with the token.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Pass the call on, unless another user would receive it.

        :raises StrangerError: if another user would receive the call.
        """
        if why := refusal(self._url):
            raise StrangerError(why)
        return continuation(details, request)

    intercept_unary_stream = intercept_unary_unary
    intercept_stream_unary = intercept_unary_unary
