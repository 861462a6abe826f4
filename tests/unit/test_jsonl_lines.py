"""Format 4, line by line: what is accepted comes back byte for byte, and what is refused says where and why."""

import json
import time
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_harness.errors import CorruptSession, UnsupportedFormat
from agent_harness.session.storage import LabelItem, LaneItem, NameItem, SessionMetadata
from session_backends.jsonl.lines import (
    LineError,
    decode_header,
    decode_line,
    encode_header,
    encode_line,
    parse_object,
)
from session_backends.jsonl.reading import load

V4 = Path(__file__).parents[2] / "fixtures" / "v4"
FILES = sorted(V4.glob("*.jsonl"))
REFUSED_LINES = {
    ("damaged-bad-interior.jsonl", 4),
    ("damaged-header-only-torn.jsonl", 1),
    ("damaged-torn-tail.jsonl", 12),
    ("damaged-unknown-kind.jsonl", 3),
    ("damaged-unknown-record-type.jsonl", 2),
    ("damaged-version-5.jsonl", 1),
    ("unicode.jsonl", 3),
}


def written_again(raw: bytes) -> bytes:
    """The line's item, encoded; its top-level keys in the order in which they were read."""
    wire = orjson.loads(encode_line(decode_line(raw).item))
    return orjson.dumps({key: wire.pop(key) for key in orjson.loads(raw)} | wire)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_accepted_line_is_encoded_to_its_own_bytes(path: Path) -> None:
    lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    refused: set[tuple[str, int]] = set()
    for number, raw in enumerate(lines, start=1):
        if not raw:
            continue
        try:
            if number == 1:
                assert encode_header(decode_header(raw)) == raw
            else:
                assert written_again(raw) == raw
        except (LineError, UnsupportedFormat):
            refused.add((path.name, number))
    assert refused == {place for place in REFUSED_LINES if place[0] == path.name}


def test_the_fixtures_are_all_there() -> None:
    assert len(FILES) == 41
    assert {name for name, _ in REFUSED_LINES} <= {path.name for path in FILES}


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("damaged-bad-interior.jsonl", 4, "not valid JSON"),
        ("damaged-seq-gap.jsonl", 4, "seq is 4, but 3 is next"),
        ("damaged-unknown-kind.jsonl", 3, "unknown kind"),
        ("damaged-unknown-record-type.jsonl", 2, "future_record"),
        ("damaged-unknown-lane.jsonl", 3, "no lane 'nolane'"),
        ("damaged-empty-file.jsonl", 1, "not a session file"),
        ("damaged-header-only-torn.jsonl", 1, "not a session file"),
        ("unicode.jsonl", 3, "surrogate"),
    ],
)
def test_damage_is_refused_naming_line_offset_and_reason(name: str, line: int, words: str) -> None:
    raw = (V4 / name).read_bytes()
    with pytest.raises(CorruptSession, match=words) as refused:
        load(raw, Path("x.jsonl"))
    assert refused.value.line == line
    assert refused.value.offset == sum(len(part) + 1 for part in raw.split(b"\n")[: line - 1])


def test_a_newer_version_is_opened_by_nobody() -> None:
    with pytest.raises(UnsupportedFormat, match="version 5"):
        load((V4 / "damaged-version-5.jsonl").read_bytes(), Path("x.jsonl"))


def test_unicode_without_the_lone_surrogate_passes() -> None:
    raw = (V4 / "unicode.jsonl").read_bytes().replace(b" lone \\ud800", b"")
    loaded = load(raw, Path("x.jsonl"))
    assert loaded.state.name == "Gärten \U0001f331"
    assert loaded.state.labels() == {"u1": "\u2029"}
    assert [pointer.lane for pointer in loaded.state.lanes()] == ["main", 'spur \U0001f6a7 "x"']


def test_a_torn_tail_is_left_out_and_counted() -> None:
    raw = (V4 / "damaged-torn-tail.jsonl").read_bytes()
    loaded = load(raw, Path("x.jsonl"))
    assert loaded.end == 3317
    assert loaded.state.leaf_of("main") == "a2"
    [found] = loaded.diagnostics
    assert (found.code, found.line, found.bytes_dropped) == ("torn_tail", 12, len(raw) - 3317)


def test_a_last_line_without_its_newline_counts() -> None:
    raw = (V4 / "damaged-no-final-newline.jsonl").read_bytes()
    loaded = load(raw, Path("x.jsonl"))
    assert (loaded.end, loaded.newline_missing) == (3464, True)
    assert loaded.state.last_seq == 11
    assert [found.code for found in loaded.diagnostics] == ["missing_final_newline"]


def test_every_prefix_of_a_file_opens_or_is_no_session() -> None:
    raw = (V4 / "run-one-tool.jsonl").read_bytes()
    header_end = raw.index(b"\n")
    for cut in range(len(raw) + 1):
        if cut < header_end:
            with pytest.raises(CorruptSession):
                load(raw[:cut], Path("x.jsonl"))
            continue
        loaded = load(raw[:cut], Path("x.jsonl"))
        whole = raw[:cut].count(b"\n") - (1 if loaded.end == cut and raw[:cut].endswith(b"\n") else 0)
        assert loaded.state.last_seq in (whole, whole - 1)
        assert loaded.end == cut or raw[: loaded.end].endswith(b"\n")
        assert raw[loaded.end : cut] == b"" or loaded.diagnostics[0].bytes_dropped == cut - loaded.end


@pytest.mark.parametrize(
    "tail", [b"\0" * 413, b'{"kind":"fact"\0', b"\xff\xfe", b"   ", b'{"kind":"fact","fact":"na\xc3']
)
def test_any_tail_that_does_not_parse_is_the_append_that_died(tail: bytes) -> None:
    raw = (V4 / "idle-all-kinds.jsonl").read_bytes()
    loaded = load(raw + tail, Path("x.jsonl"))
    assert loaded.end == len(raw)
    assert loaded.state.last_seq == 20
    assert loaded.diagnostics[0].bytes_dropped == len(tail)


@pytest.mark.parametrize(
    "line",
    [
        b"{oops",
        b"\0\0\0",
        b"",
        b"   ",
        b"[1]",
        b"7",
        b"null",
        b'"text"',
        b"\xef\xbb\xbf{}",
        b"\xff",
        b"{}",
        b'{"a":1,}',
    ],
)
def test_a_malformed_line_that_ends_is_corruption_even_at_the_end(line: bytes) -> None:
    raw = (V4 / "idle-all-kinds.jsonl").read_bytes()
    with pytest.raises(CorruptSession) as refused:
        load(raw + line + b"\n", Path("x.jsonl"))
    assert (refused.value.line, refused.value.offset) == (22, len(raw))


NAME = '{"kind":"fact","seq":21,"fact":"name","name":"x"}'


@pytest.mark.parametrize("ending", ["\r\n", "  \n", "\t\r\n", "\n"])
def test_carriage_returns_and_trailing_spaces_are_tolerated(ending: str) -> None:
    raw = (V4 / "idle-all-kinds.jsonl").read_bytes().replace(b"\n", ending.encode())
    loaded = load(raw + (NAME + ending).encode(), Path("x.jsonl"))
    assert loaded.state.last_seq == 21
    assert loaded.diagnostics == ()


ENTRY = {
    "kind": '"entry"', "id": '"a"', "type": '"custom"', "customType": '"x"', "parentId": "null", "seq": "1",
    "timestamp": "1",
}  # fmt: skip
RECORD = {
    "kind": '"record"', "type": '"abort_requested"', "id": '"r"', "lane": '"main"', "runId": '"x"', "seq": "1",
    "timestamp": "1",
}  # fmt: skip


def entry(**change: str) -> str:
    """An entry line with some values written otherwise."""
    return "{" + ",".join(f'"{key}":{value}' for key, value in (ENTRY | change).items()) + "}"


def record(**change: str) -> str:
    """A record line with some values written otherwise."""
    return "{" + ",".join(f'"{key}":{value}' for key, value in (RECORD | change).items()) + "}"


def test_the_unchanged_lines_are_accepted() -> None:
    assert decode_line(entry().encode()).item.seq == 1
    assert decode_line(record().encode()).item.seq == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"kind":"fact","seq":1,"seq":1,"fact":"name"}', "duplicate key"),
        (entry(data='{"k":1,"k":2}'), "duplicate key"),
        (entry(data="18446744073709551616"), "64 bits"),
        (entry(data="-9223372036854775809"), "64 bits"),
        (entry(data="9" * 300), "64 bits"),
        (entry(data="9" * 5000), "infinity"),
        (entry(data="NaN"), "not valid JSON"),
        (entry(data="1e999"), "not valid JSON"),
        (entry(data="1", extra="1"), "extra"),
        (entry(seq='"1"'), "seq"),
        (entry(seq="true"), "seq"),
        (entry(seq="1.0"), "seq"),
        (entry(lane="null"), "lane"),
        (entry(parentId="7"), "parentId"),
        (entry(timestamp="null"), "timestamp"),
        (entry(id='""'), "id"),
        (entry(type='"label"'), "label"),
        ('{"kind":"entry","id":"a","type":"custom","customType":"x","seq":1,"timestamp":1}', "parentId"),
        (record(type='"usage"', usage="{}", cause='"weather"'), "cause|weather"),
        (record(note="1"), "note"),
        (record(lane="7"), "lane"),
        ('{"kind":"lane","seq":1,"lane":"a"}', "leafId"),
        ('{"kind":"lane","seq":1,"lane":"","leafId":null}', "lane"),
        ('{"kind":"lane","seq":1,"lane":"a","leafId":null,"note":1}', "unknown key"),
        ('{"kind":"fact","seq":1,"fact":"colour"}', "unknown fact"),
        ('{"kind":"fact","seq":1,"fact":"name","name":null}', "name"),
        ('{"kind":"fact","seq":1,"fact":"label","label":"x"}', "targetId"),
        ('{"kind":"header","version":4,"id":"a","createdAt":1}', "second header"),
        ('{"seq":1}', "unknown kind"),
    ],
)
def test_a_line_of_another_shape_is_refused(line: str, words: str) -> None:
    with pytest.raises(LineError, match=words):
        decode_line(line.encode())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 3}, "version 3"),
        ({"version": "4"}, "version"),
        ({"id": "../../x"}, "id"),
        ({"id": ""}, "id"),
        ({"createdAt": 1.5}, "createdAt"),
        ({"cwd": None}, "cwd"),
        ({"metadata": []}, "metadata"),
        ({"note": 1}, "unknown key"),
        ({"kind": "entry"}, "header"),
    ],
)
def test_a_header_of_another_shape_is_refused(change: dict[str, object], words: str) -> None:
    good: dict[str, object] = {"kind": "header", "version": 4, "id": "a", "createdAt": 1, "cwd": "/x"}
    assert decode_header(json.dumps(good).encode()) == SessionMetadata(id="a", created_at=1, cwd="/x")
    with pytest.raises(LineError, match=words):
        decode_header(json.dumps(good | change).encode())


def test_errors_do_not_hold_the_content() -> None:
    secret = "CANARY-7f3a"
    for line in (
        f'{{"kind":"entry","id":"a","type":"message","message":{{"role":"user","content":"{secret}"}},"seq":1}}',
        f'{{"kind":"fact","seq":1,"fact":"name","name":["{secret}"]}}',
        f'{{"kind":"entry","id":"a","type":"custom","customType":"x","data":"{secret}',
        f'{{"kind":"entry","id":"a","type":"custom","customType":5,"data":"{secret}","parentId":null,"seq":1,"timestamp":1}}',
    ):
        with pytest.raises(LineError) as refused:
            decode_line(line.encode())
        assert secret not in str(refused.value)
        assert refused.value.__cause__ is None
        assert refused.value.__context__ is None or refused.value.__suppress_context__


def test_nesting_and_size_are_bounded_and_refused_quickly() -> None:
    begin = time.monotonic()
    head, tail = (
        b'{"kind":"entry","id":"a","type":"custom","customType":"x","data":',
        b',"parentId":null,"seq":1,"timestamp":1}',
    )
    assert decode_line(head + b"[" * 127 + b"]" * 127 + tail)
    for depth in (128, 250, 400, 1_000_000):
        with pytest.raises(LineError):
            decode_line(head + b"[" * depth + b"]" * depth + tail)
    with pytest.raises(LineError, match="limit"):
        parse_object(b'{"a":"' + b"x" * (66 * 1024 * 1024) + b'"}')
    assert time.monotonic() - begin < 5


def test_text_with_many_brackets_is_not_nesting() -> None:
    text = "[{" * 500
    line = orjson.dumps({"kind": "fact", "seq": 1, "fact": "name", "name": text})
    assert decode_line(line).item == NameItem(seq=1, name=text)


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"), min_size=1))
def test_facts_and_lanes_of_any_text_round_trip(free: str, name: str) -> None:
    for item in (
        NameItem(seq=1, name=free),
        LabelItem(seq=1, target_id=name, label=free),
        LaneItem(seq=1, lane=name, leaf_id=name),
    ):
        encoded = encode_line(item)
        assert b"\n" not in encoded
        assert decode_line(encoded).item == item
        # The key order of another writer is kept.
        shuffled = orjson.dumps(dict(reversed(list(orjson.loads(encoded).items()))))
        assert written_again(shuffled) == shuffled


def test_lines_are_split_at_the_byte_newline_alone() -> None:
    text = "a\u2028b\u2029c\x85d\x1ce\x0bf"
    line = orjson.dumps({"kind": "fact", "seq": 21, "fact": "name", "name": text})
    loaded = load((V4 / "idle-all-kinds.jsonl").read_bytes() + line + b"\n", Path("x.jsonl"))
    assert loaded.state.name == text
