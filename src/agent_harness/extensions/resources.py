"""Skills and prompt templates: expanding them, and loading them from markdown files (harness-v2 §8 "Options").

A file begins with front matter, `key: value` lines between two `---` lines; the rest is the content:

    ---
    name: review
    description: Reviews a change.
    ---
    Review $1 and look for $ARGUMENTS.

`name` defaults to the file's name (a skill in a folder of its own, `NAME/SKILL.md`, to the folder's). Values are plain
text to the end of the line, in single or double quotes if they like; this is not YAML, and what looks like more is
refused instead of being read as something else.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from ..types.structural import PromptTemplate, Resources, Skill

SKILL_FILE = "SKILL.md"
_FENCE = "---"
_LINE = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):(?:[ \t]+(.*?))?[ \t]*")
_PLACEHOLDER = re.compile(r"\$(?:([1-9][0-9]*)|(@|ARGUMENTS\b))")
_STRUCTURED = ("[", "{", "|", ">", "&", "*", "!", "%", "`")

T = TypeVar("T", Skill, PromptTemplate)


class InvalidResource(ValueError):
    """A resource file cannot be read. The text names the file and, where there is one, the line."""


def expand_skill(skill: Skill, additional_instructions: str | None = None) -> str:
    """The prompt that loads a skill: its instructions, marked as such, then what the caller adds."""
    loaded = f'<skill name="{skill.name}">\n{skill.content.strip()}\n</skill>'
    extra = (additional_instructions or "").strip()
    return f"{loaded}\n\n{extra}" if extra else loaded


def expand_template(template: PromptTemplate, args: Sequence[str] = ()) -> str:
    """The template's prompt. `$1`, `$2`, ... are single arguments, empty when missing; `$@` and `$ARGUMENTS` are all of
    them, separated by spaces. An argument's own `$` is text, never a placeholder."""

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return " ".join(args)
        position = int(match[1])
        return args[position - 1] if position <= len(args) else ""

    return _PLACEHOLDER.sub(value, template.content)


def parse_front_matter(text: str) -> tuple[dict[str, str], str]:
    """The front matter and the content behind it. A text without a leading `---` line has none.

    Raises:
        ValueError: the front matter does not end, or a line of it is no `key: value`; names the 1-based line.
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != _FENCE:
        return {}, "\n".join(lines)
    fields: dict[str, str] = {}
    for number, line in enumerate(lines[1:], start=2):
        if line.rstrip() == _FENCE:
            return fields, "\n".join(lines[number:])
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} is no 'key: value'")
        key = match[1]
        if key in fields:
            raise ValueError(f"line {number} sets {key!r} a second time")
        fields[key] = _plain(match[2] or "", number)
    raise ValueError("the front matter that begins in line 1 has no closing '---'")


def _plain(value: str, number: int) -> str:
    if value[:1] in ('"', "'"):
        if len(value) < 2 or value[-1] != value[0] or value[0] in value[1:-1] or "\\" in value:
            raise ValueError(f"line {number} has a quoted value that is not plain text between two quotes")
        return value[1:-1]
    if value.startswith(_STRUCTURED):
        raise ValueError(f"line {number} has a value that is not plain text; put it in quotes")
    return value


def load_skills(folder: Path) -> dict[str, Skill]:
    """Skills by name: `NAME.md` and `NAME/SKILL.md` in `folder`; none if it does not exist.

    Raises:
        InvalidResource: a file has no description, or cannot be read, or two share a name.
    """

    def skill(name: str, fields: dict[str, str], content: str) -> Skill:
        if not fields.get("description"):
            raise ValueError("a skill needs a description: it is what the model chooses by")
        return Skill(name=name, description=fields["description"], content=content)

    return _load([*_markdown(folder), *sorted(folder.glob(f"*/{SKILL_FILE}"))], skill)


def load_prompt_templates(folder: Path) -> dict[str, PromptTemplate]:
    """Prompt templates by name: `NAME.md` in `folder`; none if it does not exist.

    Raises:
        InvalidResource: a file cannot be read, or two share a name.
    """

    def template(name: str, fields: dict[str, str], content: str) -> PromptTemplate:
        return PromptTemplate(name=name, description=fields.get("description", ""), content=content)

    return _load(_markdown(folder), template)


def load_resources(folder: Path) -> Resources:
    """`folder/skills` and `folder/prompts`.

    Raises:
        InvalidResource: see `load_skills` and `load_prompt_templates`.
    """
    return Resources(skills=load_skills(folder / "skills"), prompt_templates=load_prompt_templates(folder / "prompts"))


def _markdown(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.glob("*.md")) if path.is_file())


def _load(paths: Iterator[Path] | Sequence[Path], build: Callable[[str, dict[str, str], str], T]) -> dict[str, T]:
    found: dict[str, T] = {}
    origin: dict[str, Path] = {}
    for path in paths:
        try:
            text = path.read_bytes().decode("utf-8")
            fields, content = parse_front_matter(text)
            name = fields.get("name") or (path.parent.name if path.name == SKILL_FILE else path.stem)
            if not content.strip():
                raise ValueError("there is nothing behind the front matter")
            item = build(name, fields, content.strip("\n"))
        except (OSError, ValueError) as error:
            raise InvalidResource(f"{path}: {error}") from error
        if name in found:
            raise InvalidResource(f"{path}: {origin[name]} is named {name!r} too")
        found[name], origin[name] = item, path
    return found
