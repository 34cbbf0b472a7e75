"""All tests here go to the session's server."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _server(postgres_server: None) -> None:
    """It runs."""
