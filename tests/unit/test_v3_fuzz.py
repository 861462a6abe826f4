"""Random v3 trees read like the original reads them, and no damage ends in anything but a named error."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from v3_reference import answer, assert_format_4, assert_reads_like_the_original, compaction, edit, label, user, v3

from agent_harness.errors import CorruptSession, UnsupportedFormat
from session_backends.jsonl.v3 import V3Session, normalise

FIXTURES = Path(__file__).parents[2] / "fixtures" / "v3"
SMALL = sorted(path for path in FIXTURES.glob("*.jsonl") if path.stat().st_size < 5000)


@st.composite
def trees(draw: st.DrawFn) -> bytes:
    """A v3 file with branches, edits, compactions and facts. Every entry names an earlier one as its parent."""
    entries: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 14))):
        ids = [entry["id"] for entry in entries]
        earlier = st.sampled_from(ids) if ids else st.just("gone")
        targets = [entry["id"] for entry in entries if entry["type"] != "compaction"]
        name = f"{number:x}"
        kind = draw(st.sampled_from(["user", "answer", "edit", "edit", "compaction", "label", "other"]))
        match kind:
            case "user":
                entry = user(name)
            case "answer":
                entry = answer(name, model=f"model-{name}")
            case "edit":
                target = draw(st.sampled_from(targets)) if targets else "gone"
                entry = edit(name, target, draw(st.sampled_from([None, f"edit {name}"])))
            case "compaction":
                entry = compaction(name, draw(st.one_of(earlier, st.just(name))))
            case "label":
                entry = label(name, draw(earlier), "marked")
            case _:
                entry = draw(
                    st.sampled_from(
                        [
                            {"type": "custom_message", "id": name, "customType": "t", "content": f"note {name}"},
                            {"type": "branch_summary", "id": name, "fromId": "root", "summary": f"left {name}"},
                            {"type": "model_change", "id": name, "provider": "p", "modelId": name},
                            {"type": "custom", "id": name, "customType": "t", "data": {"n": number}},
                            {"type": "future", "id": name},
                        ]
                    )
                )
        straight_on = ids[-1] if ids else None
        parent = draw(st.one_of(st.just(straight_on), st.just(straight_on), st.sampled_from([*ids, None])))
        entries.append({**entry, "parentId": parent})
    return v3(*entries)


@given(trees())
@settings(max_examples=200, deadline=None)
async def test_random_trees_give_every_leaf_the_context_of_the_original(raw: bytes) -> None:
    await assert_reads_like_the_original(raw)


def lines_of(draw: st.DrawFn) -> list[bytes]:
    return draw(st.sampled_from(SMALL)).read_bytes().split(b"\n")


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(alphabet=st.characters(categories=None), max_size=3),
    st.just([]),
    st.just({}),
    st.just([{"type": "text"}]),
)


def replaced(draw: st.DrawFn, value: Any, junk: Any) -> Any:
    """`value` with one part of it, chosen at random, replaced by `junk` or left out."""
    if isinstance(value, dict) and value and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(value)))
        if draw(st.booleans()):
            return {**value, key: replaced(draw, value[key], junk)}
        return {k: v for k, v in value.items() if k != key}
    if isinstance(value, list) and value and draw(st.integers(0, 3)):
        at = draw(st.integers(0, len(value) - 1))
        return [replaced(draw, item, junk) if index == at else item for index, item in enumerate(value)]
    return junk


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A real file, with lines lost, doubled, moved, cut and overwritten, or with values of the wrong type."""
    lines = lines_of(draw)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["drop", "double", "move", "cut", "overwrite", "value", "value"])):
            case "drop":
                del lines[at]
            case "double":
                lines.insert(draw(st.integers(0, len(lines))), lines[at])
            case "move":
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
            case "cut":
                lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
            case "overwrite":
                start = draw(st.integers(0, len(lines[at])))
                junk = draw(st.binary(max_size=4))
                lines[at] = lines[at][:start] + junk + lines[at][start + len(junk) :]
            case _:
                try:
                    value = json.loads(lines[at])
                except ValueError:
                    continue
                lines[at] = json.dumps(replaced(draw, value, draw(JUNK))).encode()
        lines = lines or [b""]
    return b"\n".join(lines)


def opened(raw: bytes, *, strict: bool) -> V3Session | type[Exception]:
    try:
        return normalise(raw, strict=strict)
    except (CorruptSession, UnsupportedFormat) as error:
        return type(error)


@given(damaged())
@settings(max_examples=300, deadline=None)
def test_damage_ends_in_a_storable_session_or_in_a_named_error(raw: bytes) -> None:
    session = opened(raw, strict=False)
    if not isinstance(session, V3Session):
        assert opened(raw, strict=True) in (session, CorruptSession)
        return
    assert_format_4(session)
    assert normalise(raw) == session
    tolerated = all(item.code in ("missing_final_newline", "label_dropped") for item in session.diagnostics)
    assert opened(raw, strict=True) == (session if tolerated else CorruptSession)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_session_are_refused(raw: bytes) -> None:
    assert opened(raw, strict=False) is CorruptSession
