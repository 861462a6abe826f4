"""Old v3 files open as the program that wrote them opens them (harness-v2 §12, decisions section 5 "v3 files")."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from v3_reference import (
    AT_MS,
    HEADER,
    answer,
    assert_format_4,
    by_id,
    compaction,
    context_of,
    edit,
    found,
    label,
    raw_entries,
    resolved,
    shown,
    storable,
    texts,
    user,
    v3,
)

from agent_harness.errors import CorruptSession, UnsupportedFormat
from agent_harness.types.codec import dump, dump_entry
from agent_harness.types.entries import ActiveToolsBody, CompactionBody, CustomBody, MessageBody, ModelChangeBody
from agent_harness.types.messages import AssistantMessage, ExtensionMessage, Usage
from session_backends.jsonl.v3 import normalise

FIXTURES = Path(__file__).parents[2] / "fixtures" / "v3"
REFUSED = {"v1-linear": 1, "v2-tree": 2}
FILES = sorted(path.stem for path in FIXTURES.glob("*.jsonl") if path.stem not in REFUSED)

DAMAGED = {
    "new-bad-interior": [("skipped_line", 5)],
    "new-blank-line": [("skipped_line", 5)],
    "new-compaction-kept-missing": [("first_kept_entry", 4)],
    "new-compaction-kept-off-branch": [("first_kept_entry", 8)],
    "new-compaction-retain-none": [("first_kept_entry", 5)],
    "new-torn-tail": [("torn_tail", 10)],
    "new-unknown-type": [("unknown_type", 5)],
    "old-fork-branched": [("missing_parent", 4)],
}
NOTED = {"new-no-final-newline": [("missing_final_newline", 10)]}


def read(name: str) -> bytes:
    return (FIXTURES / f"{name}.jsonl").read_bytes()


def oracle(name: str) -> dict[str, Any]:
    return json.loads((FIXTURES / f"{name}.oracle.json").read_text("utf-8"))


# Real files ----------------------------------------------------------------------------------------------------------


def test_every_fixture_is_covered() -> None:
    listed = {Path(item["file"]).stem for item in json.loads((FIXTURES / "index.json").read_text())["files"]}
    assert listed == {*FILES, *REFUSED}
    assert len(FILES) == 47


@pytest.mark.parametrize("name", FILES)
async def test_every_leaf_has_the_context_of_the_original(name: str) -> None:
    session, raw = normalise(read(name)), raw_entries(read(name))
    expected = storable(oracle(name)["sessionManager"])
    retained = by_id(session).keys()
    for leaf, context in expected["contextByLeaf"].items():
        assert await context_of(session.entries, resolved(raw, leaf, set(retained))) == context
    assert session.leaf_id == resolved(raw, expected["leafId"], set(retained))
    assert (await context_of(session.entries, session.leaf_id)) == expected["context"]


@pytest.mark.parametrize("name", FILES)
def test_name_and_labels_are_those_of_the_original(name: str) -> None:
    session, raw = normalise(read(name)), raw_entries(read(name))
    expected = oracle(name)["sessionManager"]
    assert session.name == expected["name"]
    set_last = {entry["targetId"]: at for at, entry in enumerate(raw.values()) if entry["type"] == "label"}
    labels: dict[str, str] = {}
    for target in sorted(expected["labels"], key=set_last.__getitem__):
        if (place := resolved(raw, target, set(by_id(session)))) is not None:
            labels[place] = expected["labels"][target]
    assert session.labels == labels


@pytest.mark.parametrize("name", FILES)
def test_entries_are_ordinary_format_4_entries(name: str) -> None:
    session, raw = normalise(read(name)), raw_entries(read(name))
    assert_format_4(session)
    assert [entry.id for entry in session.entries] == [id for id in raw if id in by_id(session)]  # file order
    for entry in session.entries:
        parent = raw[entry.id]["parentId"]
        assert entry.parent_id == resolved(raw, parent, set(by_id(session)))


@pytest.mark.parametrize("name", FILES)
def test_header_is_kept(name: str) -> None:
    session, header = normalise(read(name)), oracle(name)["sessionManager"]["header"]
    assert (session.id, session.cwd, session.parent_session) == (
        header["id"],
        header["cwd"],
        header.get("parentSession"),
    )
    assert session.header_metadata == {}


@pytest.mark.parametrize("name", FILES)
def test_diagnostics_name_every_damage_and_its_line(name: str) -> None:
    session = normalise(read(name))
    assert found(session) == (DAMAGED | NOTED).get(name, [])
    assert all(item.message for item in session.diagnostics)


@pytest.mark.parametrize("name", FILES)
def test_strict_refuses_damage_and_nothing_else(name: str) -> None:
    if name not in DAMAGED:
        assert normalise(read(name), strict=True) == normalise(read(name))
        return
    with pytest.raises(CorruptSession, match=rf"^line {DAMAGED[name][0][1]}: ") as refused:
        normalise(read(name), strict=True)
    assert refused.value.line == DAMAGED[name][0][1]


@pytest.mark.parametrize("name", [name for name in FILES if "stats" in oracle(name)["harnessImport"]])
def test_usage_and_message_count_are_those_of_the_original_import(name: str) -> None:
    if name == "new-no-final-newline":
        name = "new-tools"  # the importer dropped the complete last line; we keep it
    session, stats = normalise(read(name)), oracle(name)["harnessImport"]["stats"]
    assert sum(entry.type == "message" for entry in session.entries) == stats["messageCount"]
    usage = stats["usage"]
    cost = usage.pop("cost")
    got = dump(session.usage)
    got_cost = got.pop("cost")
    assert got == usage
    assert all(math.isclose(got_cost[key], cost[key], rel_tol=1e-12) for key in cost)


def test_usage_entries_count_and_leave_no_entry() -> None:
    session = normalise(read("new-usage-entry"))
    assert (session.usage.input, session.usage.cache_read, session.usage.total_tokens) == (20, 6, 39)
    assert math.isclose(session.usage.cost.total, 0.009)
    assert [entry.type for entry in session.entries] == ["message"] * 4


@pytest.mark.parametrize("name", REFUSED)
def test_older_versions_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedFormat, match=f"version {REFUSED[name]};"):
        normalise(read(name))


def test_a_torn_tail_says_how_many_bytes_it_had() -> None:
    tail = read("new-torn-tail").rpartition(b"\n")[2]
    assert normalise(read("new-torn-tail")).diagnostics[0].bytes_dropped == len(tail) > 0


def test_lone_surrogates_become_replacement_characters() -> None:
    entries = by_id(normalise(read("new-unicode")))
    message, custom = entries["39acaf32"].message, entries["ee973cab"].body
    assert message is not None
    assert dump(message)["content"] == "lone high \ufffd lone low \ufffd swapped \ufffd\ufffd end"
    assert isinstance(custom, CustomBody)
    assert isinstance(custom.data, dict)
    assert custom.data["key\ufffd"] == 1


# Context edits -------------------------------------------------------------------------------------------------------


def test_edited_and_removed_text_is_nowhere_in_the_entries() -> None:
    session = normalise(read("new-context-edit"))
    written = json.dumps([dump_entry(entry) for entry in session.entries])
    assert "Secret token is [removed]." in written
    assert "123" not in written
    assert "Noted." not in written
    assert session.edits_applied == 2
    assert session.usage.input == 20  # what was spent stays spent


async def test_a_branch_without_the_edit_keeps_the_original_text() -> None:
    session = normalise(
        v3(
            user("a", "secret"),
            answer("b"),
            edit("e", "a", "public"),
            user("c"),
            user("d", parentId="b"),
        )
    )
    assert_format_4(session)
    assert await texts(session, "c") == ["public", [{"type": "text", "text": "text of b"}], "text of c"]
    assert shown(await texts(session, "d")) == ["secret", "text of b", "text of d"]
    assert shown(await texts(session, "e")) == ["public", "text of b"]
    assert by_id(session)["c"].parent_id == "e"


async def test_only_the_shared_stretch_is_copied() -> None:
    session = normalise(
        v3(
            user("a"),
            user("b"),
            user("side", parentId="a"),
            user("c", parentId="b"),
            edit("e", "a", "edited"),
        )
    )
    assert_format_4(session)
    assert [entry.id for entry in session.entries] == ["a", "a.e", "b", "side", "c", "e"]
    assert by_id(session)["b"].parent_id == "a.e"
    assert await texts(session, "e") == ["edited", "text of b", "text of c"]
    assert await texts(session, "side") == ["text of a", "text of side"]


async def test_an_edit_below_a_compaction_reaches_its_retained_tail() -> None:
    session = normalise(
        v3(
            user("a"),
            user("b", "secret"),
            compaction("k", "b"),
            user("c"),
            edit("e", "b", "public"),
            user("plain", parentId="c"),
            answer("d", parentId="e"),
        )
    )
    assert_format_4(session)
    assert shown(await texts(session, "d")) == ["sum k", "public", "text of c", "text of d"]
    assert await texts(session, "plain") == ["sum k", "secret", "text of c", "text of plain"]
    assert "secret" not in json.dumps([dump_entry(by_id(session)[id]) for id in ("b.e", "k.e", "c.e", "d")])


async def test_the_latest_edit_of_a_path_wins_even_after_a_removal() -> None:
    session = normalise(v3(user("a"), user("b"), edit("e1", "a"), edit("e2", "a", "back"), edit("e3", "b", "x")))
    assert await texts(session, session.leaf_id) == ["back", "x"]
    assert session.edits_applied == 3


async def test_an_edit_in_the_kept_range_is_in_the_tail_and_one_before_it_is_not() -> None:
    session = normalise(
        v3(user("a", "old"), edit("e", "a", "new"), user("b"), compaction("k", "a"), compaction("m", "b"))
    )
    assert await texts(session, "k") == ["sum k", "new", "text of b"]
    assert await texts(session, "m") == ["sum m", "text of b"]


async def test_the_latest_edit_in_a_kept_range_is_in_the_tail() -> None:
    session = normalise(v3(user("a"), edit("e1", "a", "first"), edit("e2", "a", "second"), compaction("k", "a")))
    assert await texts(session, "k") == ["sum k", "second"]


async def test_removing_the_only_answer_keeps_the_model() -> None:
    session = normalise(v3(user("a"), answer("b", model="demo-9"), edit("e", "b")))
    context = await context_of(session.entries, session.leaf_id)
    assert context["model"] == {"provider": "demo", "modelId": "demo-9"}
    assert len(context["messages"]) == 1
    assert by_id(session)["b"].body == ModelChangeBody(provider="demo", model_id="demo-9")


@pytest.mark.parametrize("role", ["bashExecution", "system"])
async def test_content_of_other_roles_can_be_removed_but_not_replaced(role: str) -> None:
    message = {"role": role, "content": "text of a", "command": "ls", "output": "", "timestamp": 1}
    replaced = normalise(v3({"type": "message", "id": "a", "message": message}, edit("e", "a", "x")))
    removed = normalise(v3({"type": "message", "id": "a", "message": message}, edit("e", "a")))
    assert await texts(replaced, "e") == ["text of a"]
    assert await texts(removed, "e") == []


def test_an_edit_that_cannot_be_applied_is_reported() -> None:
    session = normalise(v3(user("a"), edit("e", "nowhere", "x"), user("b", parentId=None), edit("f", "a", "x")))
    assert found(session) == [("edit_without_target", 3), ("edit_without_target", 5)]
    assert session.edits_applied == 0


async def test_an_unreadable_replacement_removes_its_target() -> None:
    session = normalise(v3(user("a", "secret"), {"type": "context_edit", "id": "e", "targetId": "a"}))
    assert found(session) == [("unreadable_edit", 3)]
    assert await texts(session, "e") == []


async def test_removing_a_summary_empties_it() -> None:
    session = normalise(v3(user("a"), compaction("k", "a"), edit("e", "k")))
    assert found(session) == [("removed_summary", 4)]
    assert await texts(session, "e") == ["", "text of a"]


def test_copies_have_derived_ids_that_collide_with_nothing() -> None:
    raw = v3(user("a"), user("side"), user("a.e", parentId="a"), edit("e", "a", "x"))
    session = normalise(raw)
    assert_format_4(session)
    assert "a.e." in by_id(session)
    assert normalise(raw) == session


# Compactions ---------------------------------------------------------------------------------------------------------


def test_old_compactions_carry_their_tail_and_no_first_kept_entry() -> None:
    body = next(e.body for e in normalise(read("new-compaction")).entries if isinstance(e.body, CompactionBody))
    assert len(body.retained_tail) == 2
    for name in FILES:
        for entry in normalise(read(name)).entries:
            assert "firstKeptEntryId" not in dump_entry(entry)


async def test_a_system_message_of_a_compaction_stands_for_those_in_its_kept_range() -> None:
    system = {"role": "system", "content": "old", "timestamp": 1}
    newer = {"role": "system", "content": "new", "timestamp": 2}
    session = normalise(
        v3({"type": "message", "id": "a", "message": system}, user("b"), compaction("k", "a", systemMessage=newer))
    )
    assert await texts(session, "k") == ["new", "sum k", "text of b"]


async def test_deferred_answers_stay_out_of_a_retained_tail() -> None:
    deferred = answer("b")
    deferred["message"]["stopReason"] = "deferred"
    session = normalise(v3(user("a"), deferred, compaction("k", "a")))
    assert await texts(session, "k") == ["sum k", "text of a"]


async def test_a_compaction_that_holds_its_tail_keeps_it() -> None:
    tail = [{"role": "user", "content": "kept", "timestamp": 1}]
    entry = {"type": "compaction", "id": "k", "summary": "sum", "tokensBefore": 1, "retainedTail": tail}
    session = normalise(v3(user("a"), entry))
    assert await texts(session, "k") == ["sum", "kept"]
    assert found(session) == []


def test_an_odd_item_of_a_held_tail_is_kept_and_reported() -> None:
    entry = {"type": "compaction", "id": "k", "summary": "sum", "tokensBefore": 1, "retainedTail": ["odd", {"role": 7}]}
    session = normalise(v3(entry))
    assert found(session) == [("repaired_entry", 2), ("repaired_entry", 2)]
    body = session.entries[0].body
    assert isinstance(body, CompactionBody)
    assert [dump(message) for message in body.retained_tail] == [
        {"role": "v3.unknown", "value": "odd"},
        {"role": "v3.unknown", "v3Unread": {"role": 7}},
    ]


async def test_a_branch_summary_can_be_removed() -> None:
    entry = {"type": "branch_summary", "id": "s", "fromId": "root", "summary": "left"}
    session = normalise(v3(user("a"), entry, edit("e", "s")))
    assert await texts(session, "e") == ["text of a"]
    assert "left" not in json.dumps([dump_entry(entry) for entry in session.entries])


async def test_active_tools_are_kept() -> None:
    entry = {"type": "active_tools_change", "id": "t", "activeToolNames": ["read", "edit"]}
    session = normalise(v3(entry), strict=True)
    assert session.entries[0].body == ActiveToolsBody(active_tool_names=("read", "edit"))


async def test_an_empty_branch_summary_adds_nothing() -> None:
    entry = {"type": "branch_summary", "id": "s", "fromId": "a", "summary": ""}
    session = normalise(v3(user("a"), entry))
    assert await texts(session, "s") == ["text of a"]


# Facts ---------------------------------------------------------------------------------------------------------------


def test_clearing_one_of_two_labels_that_meet_on_an_entry_leaves_the_other() -> None:
    info = {"type": "session_info", "id": "i", "name": "n"}
    session = normalise(v3(user("a"), info, label("l1", "a", "on a"), label("l2", "i", "on i"), label("l3", "i")))
    assert session.labels == {"a": "on a"}


def test_labels_without_a_place_are_reported() -> None:
    info = {"type": "session_info", "id": "i", "name": "n"}
    session = normalise(v3(info, label("l1", "i", "x"), label("l2", "gone", "x"), user("a")))
    assert session.labels == {}
    assert found(session) == [("label_dropped", 3), ("label_without_target", 4)]


def test_names_and_labels_are_one_line() -> None:
    info = {"type": "session_info", "id": "i", "name": " two\nlines "}
    session = normalise(v3(user("a"), info, label("l", "a", "two\r\nlines")))
    assert (session.name, session.labels) == ("two lines", {"a": "two lines"})


def test_unknown_header_keys_are_kept() -> None:
    session = normalise(v3(header={**HEADER, "branch": {"name": "main"}}))
    assert session.header_metadata == {"branch": {"name": "main"}}
    assert (session.created_at, session.entries, session.leaf_id) == (1767323045678, (), None)


# Damage --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n\n",
        b"\x00" * 4096,
        b"\x89PNG\r\n\x1a\n",
        b'{"type":"turn"',
        b'{"type":"turn"}\n',
        b'{"type":"message","id":"a"}\n',
        b'{"type":"session","version":3}\n',
        b'{"type":"session","version":3,"id":""}\n',
        b'{"kind":"header","version":4,"id":"a"}\n',
        b"[1, 2]\n",
    ],
)
def test_what_is_no_session_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptSession, match="not a session file"):
        normalise(raw)


@pytest.mark.parametrize("version", [4, 5, "3", 3.5, True, None])
def test_other_versions_are_refused(version: object) -> None:
    with pytest.raises(UnsupportedFormat, match=r"only 3 and 4 can be read"):
        normalise(v3(header={**HEADER, "version": version}))


def test_a_byte_order_mark_and_blank_lines_at_the_end_are_no_damage() -> None:
    plain = v3(user("a"))
    assert normalise(b"\xef\xbb\xbf" + plain + b"\n\r\n \n", strict=True) == normalise(plain)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{not json", "skipped_line"),
        (b"", "skipped_line"),
        (b"[1]", "skipped_line"),
        (b"null", "skipped_line"),
        (b'{"type":"message","id":"x","parentId":null,"n":NaN}', "skipped_line"),
        (b'{"type":"message","parentId":null}', "skipped_line"),
        (b'{"id":"x","parentId":null}', "skipped_line"),
        (b'{"type":"session","version":3,"id":"again"}', "skipped_line"),
        (b"[" * 5000, "skipped_line"),
        (b'{"type":"custom","id":"x","data":' + b"[" * 130 + b"]" * 130 + b"}", "skipped_line"),
        (b'{"type":"future","id":"x","parentId":null,"timestamp":1}', "unknown_type"),
        (b'{"type":"model_change","id":"x","parentId":null,"timestamp":1}', "skipped_entry"),
        (b'{"type":"custom","id":"x","parentId":"gone","timestamp":1,"customType":"t"}', "missing_parent"),
        (b'{"type":"custom","id":"x","timestamp":1,"customType":"t"}', "missing_parent"),
        (b'{"type":"custom","id":"x","parentId":"x","timestamp":1,"customType":"t"}', "parent_cycle"),
        (b'{"type":"custom","id":"x","parentId":null,"customType":"t"}', "bad_timestamp"),
        (b'{"type":"custom","id":"x","parentId":null,"timestamp":"soon","customType":"t"}', "bad_timestamp"),
        (b'{"type":"custom","id":"x","parentId":null,"timestamp":-9e18,"customType":"t"}', "bad_timestamp"),
        (b'{"type":"custom","id":"x","parentId":null,"timestamp":1,"customType":"\xff"}', "invalid_utf8"),
        (b'{"type":"message","id":"x","parentId":null,"timestamp":1}', "repaired_entry"),
        (b'{"type":"usage","id":"x","parentId":null,"timestamp":1,"usage":[]}', "repaired_entry"),
    ],
)
def test_damage_is_skipped_reported_and_refused_when_strict(line: bytes, code: str) -> None:
    raw = v3(user("a")) + line + b"\n" + v3(user("b", parentId="a")).partition(b"\n")[2]
    session = normalise(raw)
    assert found(session) == [(code, 3)]
    assert [entry.id for entry in session.entries if entry.id != "x"] == ["a", "b"]
    assert session.leaf_id == "b"
    assert_format_4(session)
    with pytest.raises(CorruptSession, match=rf"^line 3: .*\[{code}\]$"):
        normalise(raw, strict=True)


def test_children_of_skipped_entries_stay_on_the_path() -> None:
    session = normalise(v3(user("a"), {"type": "future", "id": "x"}, {"type": "model_change", "id": "y"}, user("b")))
    assert by_id(session)["b"].parent_id == "a"


def test_the_later_of_two_entries_with_one_id_counts() -> None:
    session = normalise(v3(user("a", "first"), user("b", parentId=None), user("a", "second", parentId="b")))
    assert found(session) == [("duplicate_id", 4)]
    assert [entry.id for entry in session.entries] == ["b", "a"]
    assert session.leaf_id == "a"
    assert normalise(v3(user("a"), user("b"), user("a", parentId=None), user("b", parentId="a"))).leaf_id == "b"
    assert dump(by_id(session)["a"].body)["message"]["content"] == "second"


def test_a_cycle_of_parents_is_cut_once() -> None:
    session = normalise(v3(user("a", parentId="c"), user("b"), user("c"), user("d")))
    assert [code for code, _ in found(session)] == ["parent_cycle"]
    assert_format_4(session)
    assert len(session.entries) == 4


def test_a_parent_further_down_comes_first() -> None:
    session = normalise(v3(user("b", parentId="a"), user("a", parentId=None), user("c", parentId="b")))
    assert [entry.id for entry in session.entries] == ["a", "b", "c"]
    assert found(session) == []
    assert_format_4(session)


def test_a_long_chain_needs_no_deep_stack() -> None:
    session = normalise(v3(*(user(f"m{n}") for n in range(5000)), edit("e", "m0", "x")))
    assert len(session.entries) == 5001


def test_numbers_beyond_64_bits_are_what_the_writer_makes_of_them() -> None:
    raw = v3({"type": "custom", "id": "a", "customType": "t", "data": [2**70, -(2**70), 2**63, "big"]})
    body = normalise(raw.replace(b'"big"', b"1e999, " + b"9" * 400), strict=True).entries[0].body
    assert isinstance(body, CustomBody)
    assert body.data == [float(2**70), -float(2**70), 2**63, None, None]


# Messages that do not fit --------------------------------------------------------------------------------------------

FULL = answer("a")["message"]


@pytest.mark.parametrize(
    ("message", "role", "content"),
    [
        ({"role": "user", "content": None, "timestamp": 1}, "user", ""),
        ({"role": "user", "content": "x"}, "user", "x"),
        ({"role": "user", "content": "x", "timestamp": "2026-01-02T03:04:06.789Z"}, "user", "x"),
        ({"role": "user", "content": ["x", {"type": "video", "url": "u"}], "timestamp": 1}, "user", None),
        ({"role": "user", "content": {"odd": 1}, "timestamp": 1}, "user", ""),
        ({**FULL, "content": None}, "assistant", []),
        ({**FULL, "content": "x"}, "assistant", [{"type": "text", "text": "x"}]),
        ({**FULL, "errorMessage": None}, "assistant", FULL["content"]),
        ({**FULL, "stopReason": "pending"}, "assistant", FULL["content"]),
        ({**FULL, "stopReason": "other"}, "assistant", FULL["content"]),
        ({**FULL, "usage": None}, "assistant", FULL["content"]),
        ({**FULL, "usage": {"input": "7", "output": 2, "cost": {"total": None}}}, "assistant", FULL["content"]),
        ({"role": "assistant", "content": []}, "assistant", []),
        ({"role": "toolResult", "content": "x", "timestamp": 1}, "toolResult", [{"type": "text", "text": "x"}]),
        ({"role": "bashExecution", "command": "ls", "exitCode": None, "timestamp": 1}, "bashExecution", None),
        ({"role": "custom", "content": None}, "custom", ""),
        ({"role": "branchSummary"}, "branchSummary", None),
        ({"role": "compactionSummary", "summary": "s", "tokensBefore": "9"}, "compactionSummary", None),
        ({"role": " user ", "content": "x"}, "v3.user", "x"),
        ({"content": "x"}, "v3.unknown", "x"),
        ("just text", "v3.unknown", None),
        (None, "v3.unknown", None),
    ],
)
def test_messages_that_do_not_fit_are_kept_and_reported(message: Any, role: str, content: Any) -> None:
    session = normalise(v3({"type": "message", "id": "a", "message": message}))
    assert_format_4(session)
    assert [code for code, _ in found(session)] in (["repaired_entry"], [])
    kept = dump(by_id(session)["a"].body)["message"]
    assert kept["role"] == role
    if content is not None:
        assert kept["content"] == content
    # Nothing is lost: every text of the original is somewhere in what is kept.
    written = json.dumps(kept)
    for text in leaves(message):
        assert json.dumps(text) in written


def leaves(value: Any) -> list[Any]:
    """All texts below `value`, but for a role that is spelt out of form and a date that became a number."""
    if isinstance(value, dict):
        return [text for key, item in value.items() if key not in ("role", "timestamp") for text in leaves(item)]
    if isinstance(value, list):
        return [text for item in value for text in leaves(item)]
    return [value] if isinstance(value, str) else []


def test_a_missing_timestamp_is_that_of_the_entry() -> None:
    message = (
        normalise(v3({"type": "message", "id": "a", "message": {"role": "user", "content": "x"}})).entries[0].message
    )
    assert message is not None
    assert message.timestamp == AT_MS


def test_unfinished_answers_are_aborted_ones() -> None:
    message = (
        normalise(v3({"type": "message", "id": "a", "message": {**FULL, "stopReason": "pending"}})).entries[0].message
    )
    assert isinstance(message, AssistantMessage)
    assert message.stop_reason == "aborted"


@pytest.mark.parametrize("role", ["system", "hookMessage", "application"])
def test_unknown_roles_are_kept_as_they_are(role: str) -> None:
    message = {"role": role, "content": None, "extra": {"a": 1}}
    session = normalise(v3({"type": "message", "id": "a", "message": message}), strict=True)
    assert session.entries[0].body == MessageBody(
        message=ExtensionMessage(role=role, fields={"content": None, "extra": {"a": 1}})
    )


def test_unknown_keys_of_messages_survive() -> None:
    message = {
        "role": "user",
        "content": [{"type": "text", "text": "x", "k": [1]}],
        "timestamp": 1,
        "future": {"y": None},
    }
    session = normalise(v3({"type": "message", "id": "a", "message": message}), strict=True)
    assert dump(session.entries[0].body)["message"] == message


def test_usage_that_adds_up_to_no_number_is_left_out() -> None:
    entries = [{"type": "usage", "id": id, "usage": {"input": 1e308, "output": 1}} for id in "ab"]
    session = normalise(v3(*entries))
    assert session.usage == Usage()
    assert found(session) == [("usage_overflow", 1)]
    assert normalise(v3(entries[0])).usage.input == 1e308


def test_usage_of_every_kind_of_entry_adds_up() -> None:
    usage = {"input": 100, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 100, "cost": {"total": 1}}
    tool = {"role": "toolResult", "toolCallId": "c", "toolName": "t", "content": [], "isError": False, "timestamp": 1}
    session = normalise(
        v3(
            answer("a"),
            {"type": "message", "id": "b", "message": {**tool, "usage": usage}},
            {"type": "branch_summary", "id": "s", "fromId": "a", "summary": "s", "usage": usage},
            compaction("k", "a", usage=usage),
            {"type": "usage", "id": "u", "kind": "cache_warm", "usage": usage},
            {"type": "future", "id": "f", "usage": usage},
        )
    )
    assert (session.usage.input, session.usage.output, session.usage.cost.total) == (401, 2, 4.5)
