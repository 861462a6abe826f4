"""Cases: which values enter, and that they come back untouched."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import cast
from uuid import UUID

from agent_harness.errors import (
    InvalidPayload,
)
from agent_harness.types.entries import CustomBody, MessageBody
from agent_harness.types.json import JsonValue
from agent_harness.types.messages import ExtensionMessage, Usage

from .busy import answers, fill
from .checks import equal, raises, true
from .kit import Kit, cases_of
from .samples import (
    CALL,
    adjustment,
    assistant,
    custom,
    user,
    vandalize,
)


async def what_is_no_json_is_refused_with_its_path(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    for value, path in REFUSED:
        for nested, at in ((value, path), ({"deep": [value]}, f".deep[0]{path}")):
            with raises(InvalidPayload) as refused:
                await session.append_custom_entry("kit", cast("JsonValue", nested))
            true(f"$.data{at}" in str(refused.error), f"{refused.error} names $.data{at}")
    with raises(InvalidPayload):
        await session.append_message(user("half \ud83d"))
    with raises(InvalidPayload):
        await session.append_message(replace(assistant("x", CALL), stop_reason="pending"))
    with raises(InvalidPayload):
        await session.append_message(ExtensionMessage(role="unregistered", fields={}))
    with raises(InvalidPayload):
        await session.append_record(adjustment("r1", Usage(input=float("nan"))))
    for no_id in ("", "half \ud83d", cast("str", 7), cast("str", None)):
        with raises(InvalidPayload):
            await session.append_entry(custom(no_id), "main")
        with raises(InvalidPayload):
            await session.append_record(adjustment(no_id, Usage()))
    with raises(InvalidPayload):
        await session.append_custom_entry("half \ud83d")
    session.register_message_types({"half \ud83d": lambda fields: None})
    with raises(InvalidPayload):
        await session.append_message(ExtensionMessage(role="half \ud83d", fields={}))
    with raises(InvalidPayload):
        await session.append_custom_entry("kit", nest(130))
    with raises(InvalidPayload):
        await kit.repo.create(id="s2", metadata={"x": float("inf")})
    equal(await session.get_log(), [])
    equal([header.id for header in await kit.repo.list()], ["s1"])
    await session.close()


def nest(depth: int) -> JsonValue:
    """A list in a list in a list."""
    value: JsonValue = 1
    for _ in range(depth):
        value = [value]
    return value


REFUSED: tuple[tuple[object, str], ...] = (
    (float("nan"), ""),
    (float("inf"), ""),
    (-float("inf"), ""),
    (2**64, ""),
    (-(2**63) - 1, ""),
    (b"bytes", ""),
    ((1, 2), ""),
    ({1}, ""),
    (datetime(2026, 1, 1, tzinfo=UTC), ""),
    (UUID(int=7), ""),
    ({1: "x"}, ""),
    ({"\ud800": 1}, ""),
    ("half \ud83d", ""),
    ({"k": "\udc9c"}, ".k"),
)


async def what_is_json_is_given_back_digit_for_digit(kit: Kit) -> None:
    kept: list[JsonValue] = [
        None, True, False, 0, 0.0, -0.0, 1, 1.0, 2**63, 2**64 - 1, -(2**63), 1e308, 5e-324, 0.1, "", "a\0b",
        "line\u2028sep\u2029 \x85 \x1c", "\U0001f469\u200d\U0001f33e", "\ufeffbom", "a\r\nb", {}, [], {"": ""},
        {"b": 1, "a": {"z": [1, 2.5, None, {"y": "é"}]}}, {"kind": "entry", "lane": "x", "seq": 9}, nest(126),
    ]  # fmt: skip
    session = await kit.repo.create(id="s1", metadata={"kept": kept[:-1]})
    written = [await session.append_entry(custom(f"e{n}", "kit", value), "main") for n, value in enumerate(kept)]
    await session.append_message(user("line\u2028sep a\0b \U0001f469"))
    await session.create_lane('spur \U0001f6a7 "x"\u2028', "e0")
    await session.set_label("e0", "\u2029 label \x85".strip())
    before = await answers(session)
    await session.close()
    session = await kit.repo.open("s1")
    equal(await answers(session), before)
    for entry, value in zip(written, kept, strict=True):
        found = await session.get_entry(entry.id)
        assert found is not None
        assert isinstance(found.body, CustomBody)
        equal(shape(found.body.data), shape(value))
    equal(shape(cast("JsonValue", dict(session.metadata.metadata))), shape({"kept": kept[:-1]}))
    await session.close()


def shape(value: JsonValue) -> str:
    """Tells 0 from 0.0 and False, and one order of keys from another."""
    return repr(value)


async def a_message_of_a_registered_role_survives_without_the_registration(kit: Kit) -> None:
    body = ExtensionMessage(role="kit.card", fields={"title": "x", "items": [1, None], "timestamp": 5})
    session = await kit.repo.create(id="s1")
    session.register_message_types({"kit.card": lambda fields: None})
    entry_id = await session.append_message(body)
    await session.close()
    session = await kit.repo.open("s1")
    entry = await session.get_entry(entry_id)
    equal(entry and entry.body, MessageBody(message=body))
    await session.close()


async def nothing_done_to_an_answer_reaches_the_session(kit: Kit) -> None:
    session = await kit.repo.create(id="s1", metadata={"deep": {"list": [1]}})
    data: JsonValue = {"list": [1]}
    written = await session.append_entry(custom("mine", data=data), "main")
    vandalize(data)
    await fill(session)
    before = await answers(session)
    expected = repr(before)
    for entry in await session.find_entries():
        vandalize(entry)
    for entry in await session.find_entries_on_branch():
        vandalize(entry)
    for record in (*await session.find_records(), *await session.find_open_operations("main")):
        vandalize(record)
    for item in await session.get_log():
        vandalize(item)
    vandalize(written)
    vandalize(await session.get_entry("mine"))
    vandalize(await session.get_labels())
    vandalize(await session.get_lanes())
    for header in await kit.repo.list():
        vandalize(dict(header.metadata))
    equal(repr(await answers(session)), expected)
    await session.close()
    session = await kit.repo.open("s1")
    equal(repr(await answers(session)), expected)
    equal(dict(session.metadata.metadata), {"deep": {"list": [1]}})
    await session.close()


CASES = cases_of(globals())
