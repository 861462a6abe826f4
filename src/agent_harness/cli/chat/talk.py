"""An open session in a conversation: the harness on it, what it costs and how full its context is."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from ...compaction.estimate import context_tokens
from ...events.bus import Listener
from ...harness import AgentHarness
from ...outcomes import SuspendedOperation
from ...session.context import project_entries
from ...session.session import Session
from ...session.storage import MAIN
from ...tools import coding_tools
from ...types.entries import CompactionBody, Entry
from ..models import Chosen, check_reachable, choose_model, settle_model
from ..settings import Settings, as_before, create_session
from ..store import open_session, open_store, prepare_default
from .models import ChosenModels

SHOWN_ENTRIES = 6
"""How much of an older conversation is shown when it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a conversation tells after each run."""

    session: str
    model: str
    context_tokens: int  # estimated, of the next request without its prompt
    context_window: int  # tokens, 0 is unknown
    cost_usd: float
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """Opened by `new_talk` or `open_talk`; `close` leaves whatever runs resumable."""

    settings: Settings
    session: Session
    harness: AgentHarness
    models: ChosenModels
    resources: AsyncExitStack

    async def close(self) -> None:
        """Close the harness, the session and the store."""
        await self.resources.aclose()

    @property
    def suspended(self) -> SuspendedOperation | None:
        """What the conversation's lane had open when the session was opened."""
        return next((one for one in self.harness.suspended if one.lane == self.harness.name), None)

    async def use(self, chosen: Chosen) -> None:
        """Ask `chosen` from the next request on.

        Raises:
            WriteRefused: the session has an interrupted operation that is no run.
        """
        self.models.add(chosen)
        await self.harness.set_model(chosen.model)

    async def newest(self) -> Sequence[Entry]:
        """The end of the conversation, oldest first."""
        return (await self.harness.session.find_entries_on_branch(limit=SHOWN_ENTRIES))[::-1]

    async def status(self) -> Status:
        """Cost and context as they are now."""
        entries = await self.harness.session.find_entries_on_branch(stop_at_type="compaction")
        compaction = [entry for entry in entries if isinstance(entry.body, CompactionBody)]
        messages = list(project_entries(reversed(entries), {}))
        inherited = len(list(project_entries(compaction, {})))
        stats = await self.session.get_stats()
        try:
            model = await self.harness.get_model()
        except LookupError:
            model = None  # of a session that was made elsewhere
        return Status(
            session=self.session.id,
            model="unknown" if model is None else str(model),
            context_tokens=context_tokens(messages, inherited),
            context_window=0 if model is None else model.context_window,
            cost_usd=stats.cost_total,
            messages=stats.message_count,
        )


async def new_talk(settings: Settings, chosen: Chosen, prompt: str, listener: Listener) -> Talk:
    """A conversation of its own, which begins with `prompt`."""
    prepare_default(settings.store)
    async with AsyncExitStack() as stack:
        repo = await stack.enter_async_context(open_store(settings.store, must_exist=False))
        session = await stack.enter_async_context(await create_session(repo, settings, chosen, prompt))
        return await _open(stack, settings, session, chosen, listener)


async def open_talk(settings: Settings, session_id: str, chosen: Chosen | None, listener: Listener) -> Talk:
    """Go on with a session. `chosen` None: its own model.

    Raises:
        Failure: no such session, its folder is gone, its model cannot be asked.
        SessionLocked: another process is writing it.
    """
    async with AsyncExitStack() as stack:
        repo = await stack.enter_async_context(open_store(settings.store, must_exist=True))
        session = await stack.enter_async_context(await open_session(repo, session_id, settings.store))
        settings = as_before(settings, session)
        first = chosen
        if first is None:
            first = choose_model(settings.model, settings.base_url, settings.folder, settings.api)
            await check_reachable(first.server)
        talk = await _open(stack, settings, session, first, listener)
        try:
            await settle_model(talk.harness, first, wanted=chosen is not None)
        except BaseException:
            await talk.close()
            raise
        return talk


async def _open(
    stack: AsyncExitStack, settings: Settings, session: Session, chosen: Chosen, listener: Listener
) -> Talk:
    models = ChosenModels(chosen)
    harness = await stack.enter_async_context(
        AgentHarness.open(
            session=session,
            models=models,
            model=chosen.model,
            tools=coding_tools(settings.folder),
            system_prompt=settings.instructions,
        )
    )
    assert harness.name == MAIN
    harness.events.on(None, listener)
    return Talk(settings=settings, session=session, harness=harness, models=models, resources=stack.pop_all())
