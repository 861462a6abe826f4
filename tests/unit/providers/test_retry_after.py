"""What a server asks to wait."""

import time

import pytest

from agent_harness.providers.retry_after import retry_after_ms


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Retry-After": "2"}, 2_000),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "oops", "retry-after": "1"}, 1_000),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:05 -0000"}, 4_000),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:05"}, 4_000),
        ({"retry-after": "Thu, 01 Jan 1970 01:00:05 +0100"}, 4_000),
        ({"retry-after": "Thu, 01 Jan 99999 00:00:05 GMT"}, None),
    ],
)
def test_a_wait_does_not_depend_on_this_machines_zone(
    headers: dict[str, str], expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        assert retry_after_ms(headers, now_ms=1_000) == expected
    finally:
        monkeypatch.undo()
        time.tzset()
