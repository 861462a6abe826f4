"""A lane's persisted configuration: entries on the path behind its leaf (harness-v2 §3, §8, A-9, A-12)."""

from collections.abc import Sequence

from ..providers.base import Model
from ..session.context import configuration_entries
from ..types.entries import (
    ActiveToolsBody,
    EntryBody,
    MessageBody,
    ModelChangeBody,
    ProvisionedEntry,
    ThinkingLevelBody,
)
from ..types.messages import AssistantMessage
from . import jobs
from .commits import reconfigure
from .lane import LaneRuntime
from .restore import restore_lane
from .view import run_job, write_when_possible


def current_model(lane: LaneRuntime) -> Model:
    """The lane's effective model.

    Raises:
        LookupError: it is not known here.
    """
    ref = lane.state.effective_configuration.model
    model = lane.env.models.find(ref)
    if model is None:
        raise LookupError(f"lane {lane.name!r} uses model {ref.provider}/{ref.model_id}, which is not known here")
    return model


async def set_model(lane: LaneRuntime, model: Model) -> None:
    """Persist the model for this lane.

    Raises:
        ValueError: not in the harness's models: a later request could not be made.
    """
    if lane.env.models.find(model.ref) is None:
        raise ValueError(f"model {model} is not in the harness's models")
    await _set(lane, ModelChangeBody(provider=model.provider, model_id=model.id))


async def set_thinking_level(lane: LaneRuntime, level: str) -> None:
    """Persist the thinking level for this lane.

    Raises:
        ValueError: empty.
    """
    if not level:
        raise ValueError("the thinking level is empty; use 'off' for none")
    await _set(lane, ThinkingLevelBody(thinking_level=level))


async def set_active_tools(lane: LaneRuntime, names: Sequence[str]) -> None:
    """Persist the active tools for this lane.

    Raises:
        ValueError: a name that is not registered.
    """
    unknown = [name for name in names if name not in lane.env.tools]
    if unknown:
        known = ", ".join(sorted(lane.env.tools)) or "none"
        raise ValueError(f"no tool named {', '.join(map(repr, unknown))} is registered (registered: {known})")
    await _set(lane, ActiveToolsBody(active_tool_names=tuple(dict.fromkeys(names))))


async def _set(lane: LaneRuntime, body: EntryBody) -> None:
    target = ProvisionedEntry(id=lane.env.session.id_generator.next(), body=body)

    async def accept() -> str:
        if await _persisted(lane, body) == body:
            return "unchanged"
        return await jobs.accept_write(lane, target)

    await write_when_possible(lane, accept)


async def _persisted(lane: LaneRuntime, like: EntryBody) -> EntryBody | None:
    """The last accepted value of the same kind, pending writes included; never an option's default (A-9)."""
    op = lane.operation
    written = await configuration_entries(lane.env.session, lane.state.lane_state.leaf_id)
    accepted = [entry.body for entry in written] + [write.body for write in (op.pending_writes if op else ())]
    for body in reversed(accepted):
        if body.type == like.type:
            return body
        match body:
            case MessageBody(message=AssistantMessage() as message) if isinstance(like, ModelChangeBody):
                return ModelChangeBody(provider=message.provider, model_id=message.model)
            case _:
                pass
    return None


async def adopt_defaults(lane: LaneRuntime) -> None:
    """The harness's defaults changed: the lane's effective configuration follows where its path says nothing."""

    async def job() -> None:
        restored = await restore_lane(lane.env.session, lane.name, lane.state.lane_state.leaf_id, lane.env.defaults)
        reconfigure(lane, restored.reduction.effective_configuration)

    await run_job(lane, job)
