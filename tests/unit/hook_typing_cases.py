"""Programs for the type checkers, never run: every `reject_*` must be refused, everything else must pass clean."""

from agent_harness import AgentHarness, HarnessEvent
from agent_harness.events.catalog import EventType
from agent_harness.hooks.catalog import (
    AfterResponse,
    AfterResponseResult,
    AfterTool,
    BeforeCompaction,
    BeforeNavigation,
    BeforePayload,
    BeforePayloadResult,
    BeforeRequest,
    BeforeRequestResult,
    BeforeResume,
    BeforeRun,
    BeforeRunEnd,
    BeforeRunEndResult,
    BeforeRunResult,
    BeforeTool,
    CompactionDecision,
    NavigationDecision,
    ToolDecision,
    ToolResultPatch,
    TransformContext,
    TransformContextResult,
)


def refuse(event: BeforeTool) -> ToolDecision | None:
    return ToolDecision(block=event.tool_name)


async def refuse_later(event: BeforeTool) -> ToolDecision | None:
    return None


def patch(event: AfterTool) -> ToolResultPatch:
    return ToolResultPatch(content=event.content)


def begin(event: BeforeRun) -> BeforeRunResult:
    return BeforeRunResult(resume_data=event.system_prompt)


async def look(event: BeforeResume) -> None:
    return None


def note(event: HarnessEvent) -> None:
    return None


def accept_a_handler_of_each_hook(harness: AgentHarness) -> None:
    def run_end(event: BeforeRunEnd) -> BeforeRunEndResult:
        return BeforeRunEndResult(follow_up=event.run_id)

    def context(event: TransformContext) -> TransformContextResult:
        return TransformContextResult(messages=event.messages)

    def request(event: BeforeRequest) -> BeforeRequestResult:
        return BeforeRequestResult(stream_options=event.stream_options)

    def payload(event: BeforePayload) -> BeforePayloadResult:
        return BeforePayloadResult(payload=event.payload)

    def response(event: AfterResponse) -> AfterResponseResult:
        return AfterResponseResult(message=event.message)

    async def compaction(event: BeforeCompaction) -> CompactionDecision | None:
        return CompactionDecision(decline=event.reason == "manual")

    async def navigation(event: BeforeNavigation) -> NavigationDecision | None:
        return NavigationDecision(decline=event.target_id is None)

    hooks = harness.hooks
    hooks.on("before_run", begin, id="a")
    hooks.on("before_resume", look, id="a")
    hooks.on("before_run_end", run_end)
    hooks.on("transform_context", context)
    hooks.on("before_request", request)
    hooks.on("before_payload", payload)
    hooks.on("after_response", response)
    hooks.on("before_tool", refuse)
    hooks.on("after_tool", patch, id="b", redacts=True)
    hooks.on("before_compaction", compaction)
    hooks.on("before_navigation", navigation)


def accept_the_other_forms_of_a_handler(harness: AgentHarness) -> None:
    off = harness.hooks.on("before_tool", refuse_later, id="policy", timeout_ms=1_000)
    off()
    harness.hooks.on("before_tool", lambda event: ToolDecision(block=event.tool_call_id))
    harness.hooks.on("before_tool", lambda event: None)


def accept_listeners(harness: AgentHarness, name: EventType) -> None:
    async def later(event: HarnessEvent) -> None:
        note(event)

    off = harness.events.on("run_end", note)
    off()
    harness.events.on(None, later)
    harness.events.on(name, note)


def reject_a_misspelt_hook(harness: AgentHarness) -> None:
    harness.hooks.on("before_tools", refuse)


def reject_a_hook_name_that_is_any_text(harness: AgentHarness, name: str) -> None:
    harness.hooks.on(name, refuse)


def reject_an_event_name_as_a_hook(harness: AgentHarness) -> None:
    harness.hooks.on("tool_start", refuse)


def reject_the_event_of_another_hook(harness: AgentHarness) -> None:
    harness.hooks.on("after_tool", refuse)


def reject_the_handler_of_another_hook_that_runs_per_request(harness: AgentHarness) -> None:
    def request(event: BeforeRequest) -> None:
        return None

    harness.hooks.on("before_payload", request)


def reject_the_result_of_another_hook(harness: AgentHarness) -> None:
    def wrong(event: BeforeTool) -> ToolResultPatch:
        return ToolResultPatch()

    harness.hooks.on("before_tool", wrong)


def reject_the_result_of_another_hook_from_a_coroutine(harness: AgentHarness) -> None:
    async def wrong(event: BeforeCompaction) -> NavigationDecision:
        return NavigationDecision()

    harness.hooks.on("before_compaction", wrong)


def reject_a_plain_value_as_a_result(harness: AgentHarness) -> None:
    def wrong(event: BeforeTool) -> bool:
        return False

    harness.hooks.on("before_tool", wrong)


def reject_a_result_where_there_is_none(harness: AgentHarness) -> None:
    def wrong(event: BeforeResume) -> BeforeRunResult:
        return BeforeRunResult()

    harness.hooks.on("before_resume", wrong, id="a")


def reject_a_handler_without_a_parameter(harness: AgentHarness) -> None:
    def wrong() -> None:
        return None

    harness.hooks.on("before_run_end", wrong)


def reject_a_field_that_the_event_does_not_have(harness: AgentHarness) -> None:
    harness.hooks.on("before_tool", lambda event: ToolDecision(block=event.content))


def reject_a_run_handler_without_an_id(harness: AgentHarness) -> None:
    harness.hooks.on("before_run", begin)


def reject_a_resume_handler_without_an_id(harness: AgentHarness) -> None:
    harness.hooks.on("before_resume", look)


def reject_redaction_elsewhere_than_after_a_tool(harness: AgentHarness) -> None:
    harness.hooks.on("before_tool", refuse, redacts=True)


def reject_a_time_limit_elsewhere_than_before_a_tool(harness: AgentHarness) -> None:
    harness.hooks.on("after_tool", patch, timeout_ms=1_000)


def reject_a_misspelt_event(harness: AgentHarness) -> None:
    harness.events.on("run_ended", note)


def reject_an_event_name_that_is_any_text(harness: AgentHarness, name: str) -> None:
    harness.events.on(name, note)


def reject_a_hook_name_as_an_event(harness: AgentHarness) -> None:
    harness.events.on("before_tool", note)


def reject_a_listener_of_a_hook_event(harness: AgentHarness) -> None:
    def wrong(event: BeforeTool) -> None:
        return None

    harness.events.on("tool_start", wrong)


def reject_a_listener_that_answers(harness: AgentHarness) -> None:
    def wrong(event: HarnessEvent) -> ToolDecision:
        return ToolDecision()

    harness.events.on("tool_start", wrong)
