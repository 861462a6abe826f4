"""Mutations of the product that some test must find: each takes away one rule that keeps a promise.

`before` stands exactly once in the file. `found_by` is what pytest is asked to run on the mutated copy.
"""

from dataclasses import dataclass

SIMULATOR = ("tests/simulation", "-k", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One rule taken away."""

    name: str
    file: str
    before: str
    after: str
    found_by: tuple[str, ...] = SIMULATOR


JOBS = "agent_harness/lanes/jobs.py"
STEPS = "agent_harness/procedures/steps.py"
TOOLS = "agent_harness/procedures/tools.py"
BATCH = "agent_harness/loop/tools.py"
FOLD = "agent_harness/reducer/fold.py"

MUTATIONS = (
    Mutation(
        name="no revalidation in try_finish_run",
        file=JOBS,
        before="    if op.aborting or pending:\n",
        after="    if op.aborting:\n",
    ),
    Mutation(
        name="an aborting run may finish as completed",
        file=JOBS,
        before="    if op.aborting or pending:\n",
        after="    if pending:\n",
        found_by=("tests/tier_c/test_races.py", "-k", "row_4 and memory"),
    ),
    Mutation(
        name="abort closes before deferred writes are applied",
        file=JOBS,
        before='(outcome == "aborted" and waiting)',
        after="False",
        found_by=("tests/tier_c/test_races.py", "-k", "row_8 and memory"),
    ),
    Mutation(
        name="state before commit",
        file="session_backends/state_storage.py",
        before="        def commit() -> T:\n            self._state.apply(mutation)\n",
        after="        self._state.apply(mutation)\n\n        def commit() -> T:\n",
        found_by=("tests/unit/test_jsonl_files.py", "tests/unit/test_backends_conformance.py"),
    ),
    Mutation(
        name="usage after the branch: a failed attempt costs nothing",
        file=STEPS,
        before='    await fx.append_record(request_usage("assistant", op.id, entry_id, attempt, final), parent)\n',
        after='    if final.stop_reason != "error":\n'
        '        await fx.append_record(request_usage("assistant", op.id, entry_id, attempt, final), parent)\n',
        found_by=("tests/tier_b/test_run_traces.py", "-k", "retry"),
    ),
    Mutation(
        name="attempt count reset at restore",
        file=STEPS,
        before='if step is not None and step.kind == "assistant" else 0) + 1',
        after='if step is not None and step.kind == "assistant" and not reads.recovery else 0) + 1',
        found_by=("tests/tier_c/test_crash_points.py", "-k", "memory and retries"),
    ),
    Mutation(
        name="effect before intent",
        file=TOOLS,
        before="        self._result_ids[prepared.tool_index] = entry_id\n        await self._fx.append_record(\n",
        after="        self._result_ids[prepared.tool_index] = entry_id\n"
        "        await self._fx.execute_tool(prepared, self._turn_id, self._parent)\n"
        "        await self._fx.append_record(\n",
        found_by=("tests/tier_c/test_crash_points.py", "-k", "memory and must_not_run_twice"),
    ),
    Mutation(
        name="consume while aborting",
        file=FOLD,
        before="                aborting=True,\n                pending_steer=(),\n",
        after="                aborting=False,\n                pending_steer=op.pending_steer,\n",
        found_by=("tests/tier_c/test_races.py", "-k", "row_5 and memory"),
    ),
    Mutation(
        name="lost nextRun capture",
        file=JOBS,
        before="initial_messages=(*lane.state.lane_state.pending_next_run, *messages)",
        after="initial_messages=messages",
        found_by=("tests/tier_c/test_races.py", "-k", "row_7 and memory"),
    ),
    Mutation(
        name="missing existence check: a result is delivered again",
        file=TOOLS,
        before="        if call.result_exists or fx.reads.aborting:\n",
        after="        if fx.reads.aborting:\n",
        found_by=("tests/tier_a/test_tool_crash_sites.py",),
    ),
    Mutation(
        name="fence outside the transaction",
        file="session_backends/sqlite/leases.py",
        before="    return moved.rowcount == 1\n",
        after="    return moved.rowcount >= 0\n",
        found_by=("tests/unit/test_sqlite_leases.py",),
    ),
    Mutation(
        name="stale parent: a queued write takes the committed leaf",
        file="session_backends/staging.py",
        before="parent_id=self.leaf_of(lane)",
        after="parent_id=self._base.leaf_of(lane)",
        found_by=("tests/unit/test_backends_conformance.py", "tests/unit/test_jsonl_files.py"),
    ),
    Mutation(
        name="an id may be used twice",
        file="session_backends/staging.py",
        before="        raise DuplicateId(item_id)\n",
        after="        pass\n",
        found_by=("tests/unit/test_backends_conformance.py", "-k", "emory"),
    ),
    Mutation(
        name="replay ignores the recorded declaration",
        file=TOOLS,
        before='    if started.replay != "safe" or tool is None or tool.replay != "safe":\n',
        after='    if tool is None or tool.replay != "safe":\n',
        found_by=("tests/tier_a/test_tool_crash_sites.py",),
    ),
    Mutation(
        name="replay ignores the current declaration",
        file=TOOLS,
        before='    if started.replay != "safe" or tool is None or tool.replay != "safe":\n',
        after='    if started.replay != "safe" or tool is None:\n',
        found_by=("tests/tier_a/test_tool_crash_sites.py",),
    ),
    Mutation(
        name="a finished effect is reported as interrupted",
        file=TOOLS,
        before="        elif call.settled is not None:\n",
        after="        elif False:\n",
        found_by=("tests/tier_a/test_tool_crash_sites.py",),
    ),
    Mutation(
        name="a truncated batch executes",
        file=BATCH,
        before='    if assistant.stop_reason == "length":\n',
        after='    if assistant.stop_reason == "never":\n',
        found_by=("tests/tier_b/test_run_traces.py", "-k", "truncated and memory"),
    ),
    Mutation(
        name="a failing policy hook lets the tool run",
        file="agent_harness/hooks/runner.py",
        before='NOT_ALLOWED = ToolDecision(block="A policy handler failed, so the call was not allowed.")',
        after="NOT_ALLOWED = ToolDecision()",
        found_by=("tests/unit/test_hooks.py",),
    ),
    Mutation(
        name="a follow-up is committed behind the abort marker",
        file=JOBS,
        before="    if _own(lane, run_id).aborting:\n",
        after="    if False:\n",
        found_by=("tests/tier_c/test_races.py", "-k", "row_6 and memory"),
    ),
    Mutation(
        name="a deferred write clears a step error",
        file=FOLD,
        before="    if conversational:\n        # A compaction step",
        after="    if conversational or deferred_write:\n        # A compaction step",
        found_by=("tests/tier_a/test_runs.py",),
    ),
    Mutation(
        name="the second overflow compacts again",
        file="agent_harness/procedures/run.py",
        before="        if op.overflow_recovery_used:\n",
        after="        if False:\n",
        found_by=("tests/tier_b/test_overflow.py",),
    ),
    Mutation(
        name="reads run ahead of events",
        file="agent_harness/session/core.py",
        before="find_records(replace(query, up_to_seq=self.delivered_seq))",
        after="find_records(query)",
        found_by=("tests/unit/test_session_core.py",),
    ),
    Mutation(
        name="a failed run is closed as completed",
        file="agent_harness/procedures/run.py",
        before='try_finish_run(self._run_id, "failed", self._parent, error)',
        after='try_finish_run(self._run_id, "completed", self._parent)',
        found_by=("tests/tier_c/test_crash_points.py", "-k", "memory and exhausted"),
    ),
    Mutation(
        name="the batch terminates when any result says so",
        file="agent_harness/reducer/predicates.py",
        before="not all(call.terminate for call in op.tool_batch.calls)",
        after="not any(call.terminate for call in op.tool_batch.calls)",
        found_by=("tests/tier_b/test_run_traces.py", "-k", "terminate"),
    ),
    Mutation(
        name="a write failure is forgotten",
        file="agent_harness/session/core.py",
        before="            self.fault = self.fault or error\n",
        after="            pass\n",
        found_by=("tests/unit/test_session_core.py",),
    ),
    Mutation(
        name="a message enters the context before its tail",
        file="agent_harness/lanes/context.py",
        before="        self._projection += projected\n",
        after="        self._projection[-1:-1] = projected\n",
        found_by=("tests/tier_b/test_run_traces.py", "-k", "memory"),  # by the law that every test is held to
    ),
    Mutation(
        name="the context is read anew for every request",
        file="agent_harness/lanes/context.py",
        before="        if self._projection is None:\n            leaf_id",
        after="        if True:\n            leaf_id",
        found_by=("tests/tier_c/test_flat_cost.py", "-k", "memory"),
    ),
    Mutation(
        name="a settled call is recorded after the tools that still run",
        file="agent_harness/effects/gate.py",
        before="        if not isinstance(info, ExecuteToolAction):\n",
        after="        if False:\n",
        found_by=("tests/tier_c/test_trace_crashes.py", "-k", "memory and settled"),
    ),
    Mutation(
        name="a resume is not checked against what is stored",
        file="agent_harness/lanes/execution.py",
        before="        if recovery:\n            await check_fixed_point(lane)\n",
        after="",
        found_by=("tests/tier_c/test_fixed_point.py", "-k", "memory"),
    ),
    Mutation(
        name="a caller's dictionary is the harness's own",
        file="agent_harness/harness.py",
        before="stream_options=copy_options(stream_options or StreamOptions())",
        after="stream_options=stream_options or StreamOptions()",
        found_by=("tests/unit/test_settings.py",),
    ),
)
