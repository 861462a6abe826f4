"""Every line prefix of every format-4 file reduces to what its oracle says (decisions section 4)."""

import json
from pathlib import Path

import pytest

from agent_harness import build_context
from agent_harness.errors import CorruptLog, CorruptSession
from agent_harness.lanes.restore import inspect_lane
from agent_harness.session.storage import EntryItem, LabelItem, LaneItem, LogItem, NameItem, RecordItem
from agent_harness.types.codec import dump, dump_entry, dump_record
from agent_harness.types.state import EffectiveLaneConfiguration, LaneReductionResult, ModelRef, OperationState
from session_backends import JsonlSessionRepo

FIXTURES = Path(__file__).parents[2] / "fixtures" / "v4"
FILES = sorted(path.name.removesuffix(".oracle.json") for path in FIXTURES.glob("*.oracle.json"))
FILES.remove("corruption")
FILES.remove("unicode")  # refused for its lone surrogate: its own test below


def defaults_of(oracle: dict) -> EffectiveLaneConfiguration:
    given = oracle["defaults"]
    model = ModelRef(provider=given["model"]["provider"], model_id=given["model"]["modelId"])
    return EffectiveLaneConfiguration(
        model=model, thinking_level=given["thinkingLevel"], active_tool_names=tuple(given["activeToolNames"])
    )


def operation_wire(op: OperationState | None) -> dict | None:
    """The oracle's form of an operation: the specification's fields, absent ones left out."""
    if op is None:
        return None
    batch = None
    if op.tool_batch is not None:
        calls = []
        for call in op.tool_batch.calls:
            wire = {"toolIndex": call.tool_index, "toolCall": dump(call.tool_call), "resultExists": call.result_exists}
            if call.started is not None:
                wire["started"] = dump_record(call.started)
            if call.terminate:
                wire["terminate"] = True
            calls.append(wire)
        batch = {
            "assistantEntryId": op.tool_batch.assistant_entry_id,
            "calls": calls,
            "truncated": op.tool_batch.truncated,
            "unresolved": op.tool_batch.unresolved,
        }
    step = None
    if op.step is not None:
        step = {"kind": op.step.kind, "attempts": op.step.attempts, "resultEntryId": op.step.result_entry_id}
        if op.step.compaction_reason is not None:
            step["compactionReason"] = op.step.compaction_reason
    newest = None
    if op.newest_own is not None:
        newest = {"entryId": op.newest_own.entry_id, "type": op.newest_own.type}
        if op.newest_own.role is not None:
            newest["role"] = op.newest_own.role
        if op.newest_own.stop_reason is not None:
            newest["stopReason"] = op.newest_own.stop_reason
    targets = {"result": op.targets.result, "summary": op.targets.summary}
    return {
        "id": op.id,
        "kind": op.kind,
        "intent": dump(op.intent),
        "aborting": op.aborting,
        "step": step,
        "toolBatch": batch,
        "missingInitialMessages": dump(op.missing_initial_messages),
        "pendingSteer": dump(op.pending_steer),
        "pendingFollowUp": dump(op.pending_follow_up),
        "pendingWrites": dump(op.pending_writes),
        "deferred": None if op.deferred is None else dump(op.deferred),
        "overflowRecoveryUsed": op.overflow_recovery_used,
        "newestOwn": newest,
        "targets": {key: value for key, value in targets.items() if value is not None},
    }


def reduction_wire(result: LaneReductionResult) -> dict:
    state, configuration, failure = result.lane_state, result.effective_configuration, result.terminal_failure
    return {
        "laneState": {
            "lane": state.lane,
            "leafId": state.leaf_id,
            "operation": operation_wire(state.operation),
            "pendingNextRun": dump(state.pending_next_run),
        },
        "effectiveConfiguration": {
            "model": {"provider": configuration.model.provider, "modelId": configuration.model.model_id},
            "thinkingLevel": configuration.thinking_level,
            "activeToolNames": list(configuration.active_tool_names),
        },
        "terminalFailure": None
        if failure is None
        else {"entryId": failure.entry_id, "source": failure.source, "message": dump(failure.message)},
    }


async def prefix_wire(path: Path, defaults: EffectiveLaneConfiguration) -> dict:
    """What our reading of one file says, in the oracle's form."""
    repo = JsonlSessionRepo(path.parent)
    async with await repo.open(str(path), read_only=True) as session:
        lanes = []
        for pointer in await session.get_lanes():
            context = await build_context(session.view(pointer.lane), pointer.leaf_id)
            open_operations = await session.find_open_operations(pointer.lane)
            lanes.append(
                {
                    "lane": pointer.lane,
                    "leafId": pointer.leaf_id,
                    "openOperationIds": [record.id for record in open_operations],
                    "reduction": reduction_wire(await inspect_lane(session, pointer.lane, defaults)),
                    "context": {
                        "model": None
                        if context.model is None
                        else {"provider": context.model.provider, "modelId": context.model.model_id},
                        "thinkingLevel": context.thinking_level,
                        "activeToolNames": None if context.active_tools is None else list(context.active_tools),
                        "messages": dump(context.messages),
                    },
                }
            )
        stats = await session.get_stats()
        return {
            "lanes": lanes,
            "name": await session.get_name(),
            "labels": await session.get_labels(),
            "stats": {
                "messageCount": stats.message_count,
                "cachedTokens": stats.cached_tokens,
                "uncachedTokens": stats.uncached_tokens,
                "totalTokens": stats.total_tokens,
                "costTotal": stats.cost_total,
            },
        }


def item_wire(item: LogItem) -> dict:
    """The oracle's form of a log item: it names no lane of an entry, and leaves out what a fact clears."""
    match item:
        case EntryItem():
            return {"kind": "entry", "seq": item.seq, "entry": dump_entry(item.entry)}
        case RecordItem():
            return {"kind": "record", "seq": item.seq, "record": dump_record(item.record)}
        case LaneItem():
            return {"kind": "lane", "seq": item.seq, "lane": item.lane, "leafId": item.leaf_id}
        case NameItem():
            name = {} if item.name is None else {"name": item.name}
            return {"kind": "fact", "seq": item.seq, "fact": "name", **name}
        case LabelItem():
            label = {} if item.label is None else {"label": item.label}
            return {"kind": "fact", "seq": item.seq, "fact": "label", "targetId": item.target_id, **label}


async def check_oracle(oracle: dict, raw: bytes, folder: Path) -> None:
    """Every prefix of the file, and the log of the whole."""
    lines = raw.splitlines(keepends=True)
    assert [prefix["lines"] for prefix in oracle["prefixes"]] == list(range(1, len(lines) + 1))
    for expected in oracle["prefixes"]:
        path = folder / f"{expected['lines']}.jsonl"
        path.write_bytes(b"".join(lines[: expected["lines"]]))
        actual = await prefix_wire(path, defaults_of(oracle))
        for key, value in actual.items():
            assert value == expected[key], f"{oracle['file']}, {expected['lines']} lines, {key}"
    async with await JsonlSessionRepo(folder).open(str(path), read_only=True) as session:
        assert [item_wire(item) for item in await session.get_log()] == oracle["log"]


@pytest.mark.parametrize("name", FILES)
async def test_every_prefix_reduces_as_the_oracle_says(name: str, tmp_path: Path) -> None:
    oracle = json.loads((FIXTURES / f"{name}.oracle.json").read_text())
    await check_oracle(oracle, (FIXTURES / f"{name}.jsonl").read_bytes(), tmp_path)


async def test_unicode_is_refused_for_its_lone_surrogate_and_accepted_without_it(tmp_path: Path) -> None:
    text = (FIXTURES / "unicode.oracle.json").read_text()
    raw = (FIXTURES / "unicode.jsonl").read_bytes()
    refused = tmp_path / "refused.jsonl"
    refused.write_bytes(raw)
    with pytest.raises(CorruptSession, match="line 3"):
        await JsonlSessionRepo(tmp_path).open(str(refused), read_only=True)
    oracle = json.loads(json.dumps(json.loads(text)).replace("lone \\ud800 end", "lone end"))
    await check_oracle(oracle, raw.replace(b"lone \\ud800 end", b"lone end"), tmp_path)


CORRUPTION = json.loads((FIXTURES / "corruption.oracle.json").read_text())["cases"]


@pytest.mark.parametrize("case", [c for c in CORRUPTION if c["file"].startswith("corrupt-")], ids=lambda c: c["file"])
async def test_each_corruption_is_found_under_its_rule(case: dict, tmp_path: Path) -> None:
    path = tmp_path / case["file"]
    path.write_bytes((FIXTURES / case["file"]).read_bytes())
    expected = case["lanes"][0]["corruption"]
    async with await JsonlSessionRepo(tmp_path).open(str(path), read_only=True) as session:
        findings = await session.verify()
        if expected is not None:
            with pytest.raises(CorruptLog) as caught:
                await inspect_lane(session)
            assert caught.value.rule == expected["reason"]
            assert caught.value.lane == "main"
            assert caught.value.item_id
            assert expected["reason"] in {finding.rule for finding in findings}
        elif case["file"] == "corrupt-two-open.jsonl":
            # The writer refused the second start, so the file holds one open run: it opens suspended.
            assert (await inspect_lane(session)).lane_state.operation is not None
            assert findings == []
        else:
            # The bounded slice of an idle lane does not see it; verify() does.
            assert (await inspect_lane(session)).lane_state.operation is None
            assert [finding.rule for finding in findings] == ["record_after_finish"]
