"""Harnesses that a test leaves open are closed behind it."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.rig import close_rigs


@pytest_asyncio.fixture(autouse=True)
async def closed_rigs() -> AsyncIterator[None]:
    yield
    await close_rigs()
