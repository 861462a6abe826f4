"""`agent-harness chat`: a conversation at a terminal, or over a pipe."""

import os
import sys

from ..models import Chosen, check_reachable, choose_model
from ..running import Interrupted
from ..settings import Settings
from ..variables import MODEL_VARIABLE
from .console import Console, PipeConsole, TerminalConsole
from .conversation import Conversation
from .editor import Editor
from .history import Memory, history_of
from .sessions import newest_session
from .view import JsonView, TextView, View


async def chat(settings: Settings, session_id: str | None, *, newest: bool, interrupted: Interrupted) -> int:
    """Talk until the end of the input, `/quit` or a second Ctrl-C."""
    if newest and session_id is None:
        session_id = await newest_session(settings)
    chosen: Chosen | None = None
    if settings.model is not None or session_id is None:
        name = settings.model or os.environ.get(MODEL_VARIABLE)
        chosen = choose_model(name, settings.base_url, settings.folder, settings.api)
        await check_reachable(chosen.server)
    memory: Memory | None = None
    console: Console = PipeConsole()
    if not settings.json and _can_edit():
        editor = Editor()
        console = TerminalConsole(editor)
        memory = Memory(history_of(settings.folder), editor.history)
    view: View = JsonView(console) if settings.json else TextView(console)
    conversation = Conversation(settings, chosen, console=console, view=view, memory=memory, interrupted=interrupted)
    return await conversation.run(session_id)


def _can_edit() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
