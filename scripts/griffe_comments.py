"""For the reference: the comment behind a field becomes the field's docstring.

Fields of our dataclasses say their unit or reason in a comment on their line; the reference shows it.
"""

import ast
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Reads `name: Type  # comment` where the field has no docstring of its own."""

    def on_attribute_instance(
        self,
        *,
        node: ast.AST | griffe.ObjectNode,
        attr: griffe.Attribute,
        agent: griffe.Visitor | griffe.Inspector,
        **_: Any,
    ) -> None:
        """Called for every attribute that is found."""
        if attr.docstring is not None or not isinstance(node, ast.AnnAssign) or not isinstance(agent, griffe.Visitor):
            return
        if not isinstance(attr.parent, griffe.Class):
            return
        line = agent.code.split("\n")[(node.end_lineno or node.lineno) - 1]
        _, mark, comment = line.partition("  # ")
        if mark and not comment.startswith(("pyright", "type:", "noqa")):
            attr.docstring = griffe.Docstring(comment[0].upper() + comment[1:], parent=attr)
