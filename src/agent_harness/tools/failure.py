"""How a tool says that it did not do what it was asked to."""


class ToolError(Exception):
    """Becomes the call's error result; the text is written for the model and names the way out.

    Raise it only when the tool knows what happened. A command that ran and exited non-zero is a result, not this.
    """
