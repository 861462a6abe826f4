"""The threats to storage, secrets, tools and terminals, each with its tests; some of them stand here."""

import ast
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent_harness.errors import SessionError
from agent_harness.session.storage import EntryItem
from session_backends import JsonlSessionRepo
from session_backends.conformance.samples import custom

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
V4, V3 = ROOT / "fixtures" / "v4", ROOT / "fixtures" / "v3"

# Which test answers which threat: file under tests/, then test functions (in the conformance kit: cases).
THREATS: dict[str, dict[str, tuple[str, ...]]] = {
    "T1 a session id is used as a path": {
        "unit/test_jsonl_files.py": ("test_bad_ids_reach_no_file", "test_a_header_cannot_smuggle_a_path"),
        "unit/test_sqlite_repo.py": ("test_ids_that_may_not_name_a_session_are_refused_everywhere",),
    },
    "T2 two working directories share a folder": {
        "unit/test_jsonl_files.py": (
            "test_working_directories_that_share_a_folder_are_told_apart",
            "test_a_long_working_directory_gets_a_folder_all_the_same",
        ),
    },
    "T3 a link planted at the name of a temporary file": {
        "unit/test_jsonl_conversion.py": ("test_nothing_planted_at_a_guessed_name_is_touched",),
        "unit/test_jsonl_files.py": ("test_a_new_file_cannot_be_made_to_follow_a_planted_link",),
    },
    "T4 the session path is a symbolic link": {
        "unit/test_jsonl_conversion.py": ("test_a_converted_link_stays_a_link_to_the_one_file",),
        "unit/test_jsonl_files.py": ("test_a_session_opened_through_a_link_is_one_file_with_one_lock",),
    },
    "T5 the file is swapped between looking and opening": {
        "faults/test_threats.py": ("test_a_file_swapped_ten_thousand_times_is_never_mistaken",),
        "unit/test_jsonl_files.py": (
            "test_a_path_swapped_during_opening_is_not_followed",
            "test_a_file_replaced_or_written_by_others_takes_no_more_writes",
            "test_a_file_with_two_names_is_only_read",
        ),
    },
    "T6 a pipe or device is named as a session": {
        "unit/test_jsonl_files.py": ("test_listing_survives_whatever_lies_in_the_folders",),
        "unit/test_sqlite_files.py": ("test_a_folder_or_a_pipe_in_the_place_of_the_file_is_refused",),
    },
    "T7 files that others can read": {
        "unit/test_jsonl_files.py": (
            "test_every_file_is_private_under_any_umask",
            "test_a_root_that_anybody_may_write_to_is_refused",
        ),
        "unit/test_sqlite_files.py": ("test_files_and_folders_are_private_whatever_the_umask",),
        "faults/test_repair_import_doctor.py": ("test_a_repair_keeps_every_line_before_the_damaged_one",),
    },
    "T8 a path chosen by the file": {
        "faults/test_threats.py": ("test_nothing_outside_the_root_is_opened_for_a_parent_that_a_file_names",),
        "unit/test_jsonl_conversion.py": ("test_a_parent_is_resolved_to_its_id_inside_the_root_only",),
    },
    "T9 an import with paths and ids of its own": {
        "faults/test_repair_import_doctor.py": (
            "test_an_import_of_hostile_content_makes_nothing_anywhere",
            "test_an_imported_working_directory_is_data_and_never_a_path",
        ),
    },
    "T10 secrets in logs, events and telemetry": {
        "unit/test_canaries.py": (
            "test_a_run",
            "test_a_failure",
            "test_what_is_refused",
            "test_a_fault",
            "test_a_traceback_with_locals_shows_no_credential",
            "test_the_check_finds_what_leaks",
        ),
        "unit/providers/test_behaviours.py": (
            "test_a_key_echoed_by_the_server_is_hidden",
            "test_every_requests_own_key_and_headers_are_hidden_where_the_server_echoes_them",
            "test_a_traceback_with_locals_shows_no_secret",
            "test_secrets_and_content_appear_in_no_repr_and_no_log",
            "test_a_malformed_chunk_is_a_retryable_error_that_quotes_nothing",
        ),
        "tier_b/test_event_sequences.py": ("test_no_event_holds_a_secret_or_a_live_object",),
    },
    "T11 secrets in the session store": {
        "unit/test_canaries.py": ("test_a_run", "test_no_byte_of_a_store_is_of_a_secret"),
        "e2e/test_cli_run.py": ("test_the_key_goes_to_its_server_alone_and_into_no_file",),
    },
    "T13 an MCP server that misbehaves": {
        "unit/tools/test_mcp_stdio.py": (
            "test_what_is_no_message_is_passed_over_and_the_answer_still_arrives",
            "test_a_call_without_an_answer_is_given_up_at_its_deadline",
            "test_an_answer_after_the_deadline_is_nobodys",
            "test_a_server_that_dies_in_a_call_gives_an_error_and_the_next_call_a_new_server",
            "test_a_server_that_does_not_start_is_an_error_within_the_start_deadline",
            "test_a_refusal_and_a_malformed_answer_are_errors_of_that_call_alone",
            "test_closing_ends_the_server_and_everything_it_started_even_if_it_refuses",
            "test_a_deaf_server_is_given_up_when_too_much_waits_for_it",
            "test_tools_that_a_server_adds_later_are_offered_and_others_tools_stay",
        ),
        "unit/tools/test_mcp_http.py": (
            "test_a_server_that_does_not_answer_is_given_up_at_the_deadline",
            "test_a_bad_answer_is_an_error_and_the_next_call_works",
        ),
    },
    "T14 JSON bombs": {
        "faults/test_threats.py": ("test_a_bomb_is_refused_in_little_time_and_memory",),
        "faults/test_streaming.py": ("test_a_line_longer_than_any_line_may_be_is_never_held",),
        "unit/test_jsonl_lines.py": ("test_nesting_and_size_are_bounded_and_refused_quickly",),
    },
    "T15 SQL in values": {
        "unit/test_sqlite_sql.py": (
            "test_text_from_outside_is_a_value_wherever_it_goes",
            "test_no_source_file_computes_sql_inside_execute",
        ),
    },
    "T17 code from data": {
        "faults/test_threats.py": (
            "test_the_source_turns_no_data_into_code",
            "test_the_check_finds_what_turns_data_into_code",
        ),
    },
    "T18 pauses and clocks around a lease": {
        "unit/test_sqlite_leases.py": (
            "test_a_live_claim_is_refused_whatever_any_clock_says",
            "test_the_fence_only_rises_and_the_old_owner_is_refused_in_its_own_transaction",
            "test_a_stopped_owner_is_taken_over_after_its_time_to_live_and_fenced_when_it_wakes",
            "test_after_a_thousand_pauses_nothing_was_written_by_an_owner_that_had_lost_its_claim",
        ),
        "faults/test_two_processes.py": (
            "test_a_stopped_owner_that_lost_its_session_calls_nothing_and_writes_nothing",
        ),
    },
    "T19 locks lost within a process": {
        "unit/test_sqlite_process.py": (
            "test_a_snapshot_during_a_write_leaves_the_lock_in_place",
            "test_every_repository_of_a_file_shares_one_writing_connection",
        ),
    },
    "T20 a lock file unlinked or replaced": {
        "unit/test_jsonl_files.py": (
            "test_a_lock_file_that_was_unlinked_or_replaced_does_not_let_two_in",
            "test_a_lock_file_unlinked_under_a_waiting_process_never_lets_two_in",
            "test_a_file_replaced_between_opening_and_locking_is_opened_again",
        ),
        "unit/test_jsonl_conversion.py": ("test_the_claim_holds_through_the_conversion",),
    },
    "T21 fork with an open store": {
        "unit/test_jsonl_files.py": ("test_a_forked_child_cannot_write_and_does_not_free_the_claim",),
        "unit/test_sqlite_process.py": (
            "test_a_forked_child_is_refused_and_the_parent_goes_on",
            "test_the_files_of_a_database_are_not_inherited_by_programs_that_are_started",
        ),
    },
    "T24 an untrusted database": {
        "unit/test_sqlite_files.py": (
            "test_a_database_of_ours_that_somebody_reshaped_is_refused",
            "test_a_file_that_is_not_ours_is_refused_and_stays_as_it_is",
            "test_the_connections_have_the_safe_settings",
        ),
    },
    "T25 images and results without bound": {
        "unit/tools/test_mcp_stdio.py": ("test_images_pass_within_a_budget_and_what_is_left_out_is_said",),
        "unit/tools/test_tools_files.py": ("test_an_image_too_large_is_refused",),
        "unit/test_tools_loop.py": ("test_a_result_larger_than_a_line_may_be_is_an_error_result",),
        "unit/providers/test_image_budget.py": (
            "test_too_many_images_are_compacted_once_and_the_next_prompt_works",
            "test_a_prompt_that_never_fits_fails_cleanly_and_the_next_one_works",
        ),
    },
    "T26 escape sequences in terminal output": {
        "unit/cli/test_cli_output.py": (
            "test_nothing_a_terminal_obeys_is_printed",
            "test_no_text_gets_a_control_character_through",
            "test_text_in_pieces_is_shown_as_the_whole_would_be",
        ),
    },
    "T27 the environment of tools and MCP servers": {
        "unit/tools/test_mcp_stdio.py": ("test_a_server_sees_no_variable_that_was_not_allowed",),
        "unit/tools/test_tools_shell.py": ("test_only_named_variables_reach_the_command",),
    },
    "T28 a policy that fails open": {
        "unit/test_hooks.py": (
            "test_a_policy_that_does_not_say_yes_blocks_the_call",
            "test_a_policy_that_hangs_is_cut_off_and_blocks",
            "test_a_closed_harness_does_not_execute_what_its_policy_was_asked_about",
            "test_a_failing_policy_is_reported_and_ends_the_chain",
            "test_replaced_arguments_are_validated_again",
        ),
        "tier_b/test_span_trees.py": ("test_a_policy_that_fails_closed_is_a_failed_handler",),
    },
}


def functions_of(path: Path) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, kinds)}


@pytest.mark.parametrize("threat", THREATS)
def test_each_threat_has_its_tests(threat: str) -> None:
    for name, expected in THREATS[threat].items():
        path = ROOT / "tests" / name
        missing = set(expected) - functions_of(path)
        assert not missing, f"{threat}: {name} has no {', '.join(sorted(missing))}"
        assert skips(path.read_text()) == [], name


SKIPPING = {"skip", "skipif", "xfail", "importorskip"}


def skips(source: str) -> list[int]:
    """The lines that could leave a test out: a mark on a test, a parameter or a module, and calls of pytest's own."""
    lines: list[int] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Attribute(attr="mark") | ast.Name(id="mark" | "pytest"), attr=name):
                lines += [node.lineno] * (name in SKIPPING)
            case ast.ImportFrom(module="pytest" | "unittest" | "_pytest.outcomes", names=names):
                lines += [node.lineno] * any(one.name in {*SKIPPING, "SkipTest"} for one in names)
            case _:
                pass
    return sorted(lines)


@pytest.mark.parametrize(
    "code",
    [
        "@pytest.mark.skip\ndef test_a(): ...",
        "@pytest.mark.skipif(True, reason='x')\nasync def test_a(): ...",
        "@pytest.mark.xfail(strict=False)\ndef test_a(): ...",
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.skipif(1, reason='x'))])\ndef test_a(): ...",
        "pytestmark = pytest.mark.skip(reason='x')",
        "pytestmark = [pytest.mark.skipif(True, reason='x')]",
        "mark = pytest.mark\n@mark.skip\ndef test_a(): ...",
        "def test_a():\n    pytest.skip('x')",
        "pytest.importorskip('nothing')",
        "from pytest import skip",
    ],
)
def test_whatever_leaves_a_test_out_is_found(code: str) -> None:
    assert len(skips(code)) == 1


def test_what_leaves_nothing_out_is_not_found() -> None:
    assert skips("@pytest.mark.parametrize('skip', [1])\ndef test_skip(skip): self.skip()  # pytest.mark.skip") == []


def test_every_threat_is_listed() -> None:
    # T12 needs a memory, T16 a search and T22, T23 a database server: the package has none of them.
    expected = [*range(1, 12), *range(13, 16), *range(17, 22), *range(24, 29)]
    assert [int(name.split(" ")[0][1:]) for name in THREATS] == expected


# T5 -----------------------------------------------------------------------------------


async def test_a_file_swapped_ten_thousand_times_is_never_mistaken(tmp_path: Path) -> None:
    """A thread puts a link to another session in the place of the file, and the file back, as fast as it can."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    repo = JsonlSessionRepo(root)
    session = await repo.create(id="s1", cwd="/x")
    await session.append_entry(custom("mine"), "main")
    path = Path(session.metadata.path or "")
    await session.close()
    victim_session = await JsonlSessionRepo(outside).create(id="s1", cwd="/x")
    await victim_session.append_entry(custom("secret"), "main")
    await victim_session.close()
    victim = Path(victim_session.metadata.path or "")
    before = (victim.read_bytes(), victim.stat().st_mtime_ns)
    aside = path.with_name("aside")
    swaps = 0
    tried = threading.Event()

    def swap() -> None:
        nonlocal swaps
        for number in range(10_000):
            if number % 100 == 0:  # now and then an opening meets the file in its place
                tried.clear()
                tried.wait(5)
            path.rename(aside)
            path.symlink_to(victim)
            path.unlink()
            aside.rename(path)
            swaps += 1

    thread = threading.Thread(target=swap)
    thread.start()
    opened = refused = written = 0
    while thread.is_alive():
        for read_only in (True, False):
            try:
                session = await repo.open("s1", read_only=read_only)
            except SessionError:
                refused += 1
                continue
            finally:
                tried.set()
            opened += 1
            ids = [item.entry.id for item in await session.get_log() if isinstance(item, EntryItem)]
            assert ids[:1] == ["mine"]
            assert ids == ["mine", *(f"e{number}" for number in range(len(ids) - 1))]
            if not read_only:
                try:
                    await session.append_entry(custom(f"e{len(ids) - 1}"), "main")
                    written += 1
                except SessionError:
                    refused += 1
            await session.close()
    thread.join()
    print(f"{opened} opened, {refused} refused, {written} written")
    assert swaps == 10_000
    assert opened > 0
    assert refused > 0
    assert (victim.read_bytes(), victim.stat().st_mtime_ns) == before
    async with await repo.open("s1", read_only=True) as session:
        assert len(await session.get_log()) == 1 + written


# T8 -----------------------------------------------------------------------------------

AUDITED = """
import asyncio, json, os, sys
from pathlib import Path
from session_backends import JsonlSessionRepo

root, named = Path(sys.argv[1]), json.loads(sys.argv[2])
opened, watching = [], False

def audit(event, arguments):
    if watching and event in ("open", "os.listdir", "os.scandir", "os.rename", "os.link"):
        opened.append(str(arguments[0]))

sys.addaudithook(audit)
lines = Path(sys.argv[3]).read_bytes().split(b"\\n")
header = json.loads(lines[0])

async def visit(repo, path):
    await repo.list()
    async with await repo.open(str(path), read_only=True):
        pass
    async with await repo.open(str(path)) as session:
        await session.set_name("converted")

async def main():
    global watching
    repo = JsonlSessionRepo(root)
    folder = root / "--x--"
    folder.mkdir(exist_ok=True)
    paths = []
    for number, parent in enumerate([str(root / "warm"), *named]):
        path = folder / f"1_child{number}.jsonl"
        path.write_bytes(json.dumps(header | {"parentSession": parent}).encode() + b"\\n" + b"\\n".join(lines[1:]))
        paths.append(path)
    await visit(repo, paths[0])  # what is imported late is imported now
    watching = True
    for path in paths[1:]:
        await visit(repo, path)
    watching = False
    print(json.dumps(opened))

asyncio.run(main())
"""


def test_nothing_outside_the_root_is_opened_for_a_parent_that_a_file_names(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    outside = elsewhere / "outside.jsonl"
    outside.write_bytes((V3 / "new-simple.jsonl").read_bytes())
    os.mkfifo(root / "fifo")
    (root / "link.jsonl").symlink_to(outside)
    (root / "folder").symlink_to(elsewhere)
    named = [
        "/etc/passwd",
        "/dev/zero",
        "/proc/self/environ",
        "../../x",
        "~/.ssh/id_rsa",
        str(outside),
        f"{root}/../elsewhere/outside.jsonl",
        str(root / "link.jsonl"),
        str(root / "folder" / "outside.jsonl"),
        str(root / "fifo"),
        str(root),
    ]
    done = subprocess.run(
        [sys.executable, "-c", AUDITED, root, json.dumps(named), V3 / "new-user-only.jsonl"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    opened = json.loads(done.stdout)
    assert len(opened) > 3 * len(named)  # the hook saw what was opened
    inside = [path for path in opened if Path(path).is_relative_to(root) and "elsewhere" not in path]
    foreign = [path for path in opened if path not in inside]
    # A folder in the root that is a link is looked into: whoever owns the root made it.
    assert set(foreign) == set()


# T14 ----------------------------------------------------------------------------------

BOMBED = """
import asyncio, resource, sys, time
from session_backends import JsonlSessionRepo
from agent_harness.errors import CorruptSession

async def main():
    begin, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        await JsonlSessionRepo(sys.argv[1]).open(sys.argv[1] + "/bomb.jsonl", read_only=True)
    except CorruptSession as error:
        print("refused", error.line)
    print(time.process_time() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

asyncio.run(main())
"""

BOMBS = {
    "a million brackets": b"[" * 1_000_000 + b"]" * 1_000_000,
    "a million objects": b'{"a":' * 1_000_000 + b"1" + b"}" * 1_000_000,
    "a number of a million digits": b'{"kind":"fact","seq":1,"n":' + b"9" * 1_000_000 + b"}",
    "a million keys": b"{" + b",".join(b'"k%d":0' % number for number in range(1_000_000)) + b"}",
    "129 levels": b'{"kind":"entry","data":' + b"[" * 129 + b"]" * 129 + b"}",
    "a million backslashes": b'{"kind":"' + b"\\\\" * 1_000_000 + b'"}',
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_in_little_time_and_memory(bomb: str, tmp_path: Path) -> None:
    header = (V4 / "run-one-tool.jsonl").read_bytes().split(b"\n")[0]
    (tmp_path / "bomb.jsonl").write_bytes(header + b"\n" + BOMBS[bomb] + b"\n")
    done = subprocess.run(
        [sys.executable, "-c", BOMBED, tmp_path], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    said, figures = done.stdout.splitlines()
    assert said == "refused 2"
    seconds, kilobytes = figures.split(" ")
    assert float(seconds) < 8  # of processor time; measured below 1.5
    assert int(kilobytes) < 700 * 1024


# T17 ----------------------------------------------------------------------------------

FORBIDDEN_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {("yaml", "load"), ("yaml", "unsafe_load"), ("yaml", "full_load"), ("numpy", "load")}


def code_from_data(source: str) -> list[str]:
    """What in a source text could turn stored data into code, with its line."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [f"{node.lineno} {one.name}" for one in names if one.name.split(".")[0] in FORBIDDEN_MODULES]
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in FORBIDDEN_MODULES:
                found.append(f"{node.lineno} {module}")
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                found.append(f"{node.lineno} {name}")
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if (
                owner,
                name,
            ) in FORBIDDEN_ATTRIBUTES:
                found.append(f"{node.lineno} {owner}.{name}")
            case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"), args=[first, *_]):
                if not isinstance(first, ast.Constant):
                    found.append(f"{node.lineno} import_module")
            case _:
                pass
    return found


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal as m",
        "import shelve",
        "eval(x)",
        "exec(x)",
        "compile(x, '', 'exec')",
        "__import__(x)",
        "importlib.import_module(x)",
        "import_module(f'agent_{x}')",
        "yaml.load(x)",
    ],
)
def test_the_check_finds_what_turns_data_into_code(line: str) -> None:
    assert len(code_from_data(f"def f():\n    {line}\n")) == 1


# Imports of a name that is no literal, each with its reason.
KNOWN_IMPORTS = {
    "agent_harness/__init__.py": "the public names' own modules, from a table in the source",
    "agent_harness/providers/__init__.py": "the providers' own modules, from a table in the source",
}


def test_the_source_turns_no_data_into_code() -> None:
    files = sorted(SRC.rglob("*.py"))
    assert len(files) > 100
    found = {str(path.relative_to(SRC)): hits for path in files if (hits := code_from_data(path.read_text()))}
    assert {name: hits for name, hits in found.items() if name not in KNOWN_IMPORTS} == {}
    assert all(hit.endswith(" import_module") for name in KNOWN_IMPORTS for hit in found[name])
