"""The in-memory reference is deterministic and shows spans as they nest, running ones included."""

import pytest

from agent_harness.telemetry import InMemoryTelemetryContext, RecordedSpan, SpanError, SpanStatus, TelemetrySpan


async def scenario(root: InMemoryTelemetryContext) -> None:
    async def outer(span: TelemetrySpan) -> None:
        span.add_event("before")
        await span.start_span("inner", {"n": 1}, inner)
        await span.start_span("noise", {}, noise)
        span.add_event("after", {"of": ["inner"]})

    async def inner(span: TelemetrySpan) -> None:
        span.set_attributes({"n": 2, "extra": True})

    async def noise(span: TelemetrySpan) -> None:
        await span.start_span("inner", {}, inner)

    await root.start_span("outer", {"lane": "main"}, outer)


async def test_equal_work_gives_equal_recordings() -> None:
    first, second = InMemoryTelemetryContext(), InMemoryTelemetryContext()
    await scenario(first)
    await scenario(second)
    assert first.spans() == second.spans()
    assert [(span.id, span.parent_id, span.name) for span in first.spans()] == [
        (1, None, "outer"),
        (2, 1, "inner"),
        (3, 1, "noise"),
        (4, 3, "inner"),
    ]


async def test_ticks_order_starts_events_and_ends_across_spans() -> None:
    root = InMemoryTelemetryContext()
    await scenario(root)
    order = [(span.started_tick, f"+{span.name}") for span in root.spans()]
    order += [(span.ended_tick or 0, f"-{span.name}") for span in root.spans()]
    order += [(event.tick, event.name) for span in root.spans() for event in span.events]
    names = [name for _, name in sorted(order)]
    assert names == ["+outer", "before", "+inner", "-inner", "+noise", "+inner", "-inner", "-noise", "after", "-outer"]
    assert sorted(tick for tick, _ in order) == list(range(1, 11))


async def test_the_tree_shows_names_as_they_nest_and_hides_on_request() -> None:
    root = InMemoryTelemetryContext()
    await scenario(root)
    assert root.tree() == [("outer", ["inner", ("noise", ["inner"])])]
    assert root.tree(hide=frozenset({"noise"})) == [("outer", ["inner"])]


async def test_start_and_end_attributes_are_kept_apart_and_merged_on_request() -> None:
    root = InMemoryTelemetryContext()
    await scenario(root)
    first = root.spans("inner")[0]
    assert (first.start_attributes, first.end_attributes) == ({"n": 1}, {"n": 2, "extra": True})
    assert first.attributes == {"n": 2, "extra": True}


async def test_a_running_span_is_seen_without_end_or_status_and_a_snapshot_does_not_change() -> None:
    root = InMemoryTelemetryContext()
    seen: list[RecordedSpan] = []

    async def work(span: TelemetrySpan) -> None:
        seen.extend(root.spans())
        span.set_attributes({"late": 1})

    await root.start_span("work", {}, work)
    assert [(span.status, span.ended_tick, dict(span.attributes)) for span in seen] == [(None, None, {})]
    assert root.spans()[0].status == SpanStatus(status="ok")


async def test_a_recorded_bag_cannot_be_changed() -> None:
    root = InMemoryTelemetryContext()
    await scenario(root)
    with pytest.raises(TypeError):
        root.spans()[0].start_attributes["lane"] = "other"


async def test_an_explicit_error_keeps_its_diagnostics() -> None:
    root = InMemoryTelemetryContext()
    status = SpanStatus(status="error", error=SpanError(name="retryable", message="status 529"))

    async def work(span: TelemetrySpan) -> None:
        span.set_status(status)

    await root.start_span("work", {}, work)
    assert root.spans()[0].status == status


@pytest.mark.parametrize(
    "value",
    [b"bytes", [b"bytes"], [1, "a"], [True, 1], {"a": 1}, [["a"]], object(), {1, 2}, bytearray(b"x")],
    ids=["bytes", "list of bytes", "mixed", "bool and int", "mapping", "nested", "object", "set", "bytearray"],
)
async def test_a_value_of_no_attribute_type_drops_its_whole_payload(value: object) -> None:
    root = InMemoryTelemetryContext()

    async def work(span: TelemetrySpan) -> None:
        span.set_attributes({"fine": 1, "bad": value})

    await root.start_span("work", {"n": 1}, work)
    assert root.spans()[0].attributes == {"n": 1}


async def test_every_attribute_type_is_kept() -> None:
    root = InMemoryTelemetryContext()
    bag = {"s": "x", "i": 1, "f": 0.5, "b": True, "ss": ["a"], "ns": [1, 0.5], "bs": [True], "none": []}

    async def work(span: TelemetrySpan) -> None:
        span.set_attributes(bag)

    await root.start_span("work", {}, work)
    assert root.spans()[0].end_attributes == bag | {"ss": ("a",), "ns": (1, 0.5), "bs": (True,), "none": ()}


class Hostile(SpanError):
    """Diagnostics that cannot be read."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> object:
        if name == "message":
            raise RuntimeError("unreadable")
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    "error",
    [Hostile(name="n", message="m"), SpanError(name="n", message=b"m"), SpanError(name="n", message=None)],
    ids=["raises", "bytes", "none"],
)
async def test_an_unreadable_status_is_ignored_as_a_whole(error: SpanError) -> None:
    root = InMemoryTelemetryContext()

    async def work(span: TelemetrySpan) -> None:
        span.set_status(SpanStatus(status="error", error=error))

    await root.start_span("work", {}, work)
    assert root.spans()[0].status == SpanStatus(status="ok")


async def test_a_name_that_is_no_string_drops_its_payload() -> None:
    root = InMemoryTelemetryContext()

    async def work(span: TelemetrySpan) -> None:
        span.set_attributes({"fine": 1, 2: "two"})

    await root.start_span("work", {}, work)
    assert root.spans()[0].attributes == {}
