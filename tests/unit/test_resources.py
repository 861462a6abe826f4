"""Skills and prompt templates: how they expand, how they are loaded, and what a prompt made of one stores."""

from pathlib import Path

import pytest

from agent_harness import AgentHarness, Err, Ok, Session
from agent_harness.extensions.resources import (
    InvalidResource,
    expand_skill,
    expand_template,
    load_prompt_templates,
    load_resources,
    load_skills,
    parse_front_matter,
)
from agent_harness.outcomes import Closed, InvalidMessage, UnknownSkill, UnknownTemplate
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import SCRIPTED_MODEL, ManualClock, scripted_models
from agent_harness.types.messages import UserMessage
from agent_harness.types.records import OperationStarted, RunIntent
from agent_harness.types.structural import PromptTemplate, Resources, Skill

REVIEW = Skill(name="review", description="Reviews.", content="Read the diff.\n")


def template(content: str) -> PromptTemplate:
    return PromptTemplate(name="t", content=content)


# Expansion -----------------------------------------------------------------------------------------------------------


def test_a_skill_is_its_marked_content_and_then_what_the_caller_adds() -> None:
    assert expand_skill(REVIEW) == '<skill name="review">\nRead the diff.\n</skill>'
    assert expand_skill(REVIEW, "  Only src. ") == '<skill name="review">\nRead the diff.\n</skill>\n\nOnly src.'
    assert expand_skill(REVIEW, "  ") == expand_skill(REVIEW)


@pytest.mark.parametrize(
    ("content", "args", "expanded"),
    [
        ("fix $1", ["bug"], "fix bug"),
        ("$2 before $1", ["a", "b"], "b before a"),
        ("$1 and $2", ["a"], "a and "),
        ("all: $@", ["a", "b c"], "all: a b c"),
        ("all: $ARGUMENTS.", ["a", "b"], "all: a b."),
        ("none: $@", [], "none: "),
        ("$10$1", list("abcdefghij"), "ja"),
        ("$0 $HOME $ARGUMENTSX $$", ["a"], "$0 $HOME $ARGUMENTSX $$"),
        ("$1 $2", ["$2", "$@"], "$2 $@"),
        ("$1", [r"\1\g<0>"], r"\1\g<0>"),
        ("no placeholder", ["unused"], "no placeholder"),
    ],
)
def test_a_template_replaces_placeholders_once(content: str, args: list[str], expanded: str) -> None:
    assert expand_template(template(content), args) == expanded


# Files ---------------------------------------------------------------------------------------------------------------


def test_front_matter_is_plain_keys_and_values_before_the_content() -> None:
    text = '---\nname: review\n# a comment\n\ndescription: Looks: at "it".\nx-y:\nquoted: "a # b"\n---\nBody\n---\nmore'
    fields, content = parse_front_matter(text)
    assert fields == {"name": "review", "description": 'Looks: at "it".', "x-y": "", "quoted": "a # b"}
    assert content == "Body\n---\nmore"


def test_front_matter_copes_with_other_editors() -> None:
    assert parse_front_matter("\ufeff---\r\nname: a\r\n---\r\nBody\r\n") == ({"name": "a"}, "Body\n")
    assert parse_front_matter("Just text") == ({}, "Just text")
    assert parse_front_matter("--- no fence\n") == ({}, "--- no fence\n")
    assert parse_front_matter("---\nnote: a\u2028b\n---\n")[0] == {"note": "a\u2028b"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("---\nname: a\n", "no closing"),
        ("---\nname a\n---\n", "line 2 is no"),
        ("---\nname: a\n  nested: b\n---\n", "line 3 is no"),
        ("---\n- item\n---\n", "line 2 is no"),
        ("---\nname:a\n---\n", "line 2 is no"),
        ("---\nname: a\nname: b\n---\n", "line 3 sets 'name' a second time"),
        ("---\nname: [a, b]\n---\n", "line 2 has a value"),
        ("---\nname: |\n---\n", "line 2 has a value"),
        ('---\nname: "a\n---\n', "line 2 has a quoted value"),
        ('---\nname: "a" b"\n---\n', "line 2 has a quoted value"),
        ('---\nname: "a\\n"\n---\n', "line 2 has a quoted value"),
    ],
)
def test_front_matter_that_is_not_plain_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_front_matter(text)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_a_folder_gives_skills_and_templates_by_name(tmp_path: Path) -> None:
    write(tmp_path / "skills/review.md", "---\ndescription: Reviews.\n---\n\nRead the diff.\n")
    write(tmp_path / "skills/deploy/SKILL.md", "---\ndescription: Deploys.\n---\nPush.")
    write(tmp_path / "skills/deploy/notes.md", "not a skill")
    write(tmp_path / "skills/other.md", "---\nname: named\ndescription: Named.\n---\nText.")
    write(tmp_path / "skills/readme.txt", "not a skill")
    write(tmp_path / "prompts/fix.md", "Fix $1.")
    loaded = load_resources(tmp_path)
    assert dict(loaded.skills) == {
        "review": Skill(name="review", description="Reviews.", content="Read the diff."),
        "deploy": Skill(name="deploy", description="Deploys.", content="Push."),
        "named": Skill(name="named", description="Named.", content="Text."),
    }
    assert dict(loaded.prompt_templates) == {"fix": PromptTemplate(name="fix", content="Fix $1.")}
    assert load_resources(tmp_path / "nowhere") == Resources()


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"a.md": "Text."}, "a.md: a skill needs a description"),
        ({"a.md": "---\ndescription: D.\n---\n \n"}, "a.md: there is nothing behind"),
        ({"a.md": "---\ndescription: D.\n"}, "a.md: the front matter"),
        (
            {"a.md": "---\ndescription: D.\n---\nA", "b.md": "---\nname: a\ndescription: D.\n---\nB"},
            r"b.md: .*a.md is named 'a' too",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, files: dict[str, str], reason: str) -> None:
    for name, text in files.items():
        write(tmp_path / name, text)
    with pytest.raises(InvalidResource, match=reason):
        load_skills(tmp_path)


def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"caf\xe9")
    with pytest.raises(InvalidResource, match=r"a\.md: .utf-8. codec"):
        load_prompt_templates(tmp_path)


# Prompts -------------------------------------------------------------------------------------------------------------

RESOURCES = Resources(
    skills={"review": REVIEW},
    prompt_templates={"fix": template("Fix $1 in $2."), "empty": template("$1")},
)


async def harness_on(session: Session) -> AgentHarness:
    created = await AgentHarness.create(
        session=session,
        models=scripted_models("One.", "Two."),
        model=SCRIPTED_MODEL,
        resources=RESOURCES,
        clock=ManualClock(),
    )
    return created.harness


async def stored_prompts(session: Session) -> list[str]:
    prompts = []
    for record in await session.find_records(type="operation_started", order="oldestFirst"):
        assert isinstance(record.body, OperationStarted)
        assert isinstance(record.body.intent, RunIntent)
        (message,) = record.body.intent.original_prompt
        assert isinstance(message, UserMessage)
        assert isinstance(message.content, str)
        prompts.append(message.content)
    return prompts


async def test_the_original_prompt_holds_the_expanded_text(repo: SessionRepo) -> None:
    session = await repo.create()
    async with await harness_on(session) as harness:
        assert isinstance(await harness.skill("review", "Only src."), Ok)
        assert isinstance(await harness.prompt_from_template("fix", ["the bug", "$1"]), Ok)
        assert await stored_prompts(session) == [
            '<skill name="review">\nRead the diff.\n</skill>\n\nOnly src.',
            "Fix the bug in $1.",
        ]
        entries = await session.find_entries_on_branch(order="oldestFirst")
        assert [e.message.content for e in entries if isinstance(e.message, UserMessage)] == await stored_prompts(
            session
        )
    await repo.close()


async def test_an_unknown_name_is_refused_with_nothing_written(repo: SessionRepo) -> None:
    session = await repo.create()
    harness = await harness_on(session)
    skill, fix = await harness.skill("deploy"), await harness.prompt_from_template("deploy")
    assert skill == Err(UnknownSkill(name="deploy", message="there is no skill 'deploy'; there are: review"))
    assert isinstance(fix, Err)
    assert fix.error == UnknownTemplate(
        name="deploy", message="there is no prompt template 'deploy'; there are: empty, fix"
    )
    empty = await harness.prompt_from_template("empty")
    assert isinstance(empty, Err)
    assert isinstance(empty.error, InvalidMessage)
    assert await session.get_log() == []
    await harness.close()
    assert await harness.skill("deploy") == Err(Closed())
    assert await harness.prompt_from_template("deploy") == Err(Closed())
    await repo.close()
