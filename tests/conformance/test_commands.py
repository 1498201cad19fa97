"""Commands as a user runs them, besides `check` and `replay` on their own."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import httpx
import jsonschema
import pytest
from recorded import streamed, whole, write_folder

from tokenwire.demo_server import demo_server
from tokenwire.judging.verdict import ExitStatus, Verdict
from tokenwire.profile import VERSION, known_profiles, standing
from tokenwire.report.overview import profile_in_words
from tokenwire.spec_files import load_schema

NOBODY = "http://127.0.0.1:1"
COMMANDS = (
    "check",
    "replay",
    "merge",
    "record",
    "explain",
    "list",
    "again",
    "demo",
    "init",
    "baseline show",
    "baseline update",
    "baseline check",
)


def printed(ran: CompletedProcess[str]) -> str:
    """What was said, without the frame that errors stand in."""
    return " ".join((ran.stdout + ran.stderr).replace("│", " ").split())


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "bad", whole("w1"), whole("w2"), streamed("s", forgets_an_id=True))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_page_ends_with_examples_of_its_command(tokenwire, command: str) -> None:
    ran = tokenwire(*command.split(), "--help")
    assert ran.returncode == 0
    _, _, examples = ran.stdout.partition("Examples:\n")
    lines = [line for line in examples.splitlines() if line]
    assert lines
    assert all(line.startswith(f"    tokenwire {command}") for line in lines)


# Explain


def test_explain_tells_all_of_a_requirement(tokenwire) -> None:
    output = printed(tokenwire("explain", "cumulative-ids-extend"))
    assert "cumulative-ids-extend MUST" in output
    assert "a PASS needs" in output
    assert "oldest-ids-dropped" in output
    assert "tokenwire check --target URL --requirement cumulative-ids-extend" in output
    wrong = tokenwire("explain", "cumulative-id-extend")
    assert wrong.returncode == ExitStatus.USAGE
    assert "did you mean 'cumulative-ids-extend'?" in printed(wrong)


# Settings


def test_settings_are_defaults_that_the_command_line_beats(tokenwire, bad: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenwire.toml").write_text('profiles = ["core"]\n', "utf-8")
    tokenwire("replay", "bad", "--json", "core.json")
    tokenwire("replay", "bad", "--profile", "metadata", "--json", "metadata.json")
    tokenwire("replay", "bad", "--requirement", "usage-adds-up", "--json", "one.json")
    reports = {
        name: json.loads((tmp_path / f"{name}.json").read_text("utf-8")) for name in ("core", "metadata")
    }
    judged = {name: {row["requirement"] for row in report["verdicts"]} for name, report in reports.items()}
    assert "done-ends-the-stream" in judged["core"]
    assert "logprobs-whole" in judged["metadata"]
    assert "logprobs-whole" not in judged["core"]
    assert "done-ends-the-stream" not in judged["metadata"]
    assert reports["core"]["selection"] == {"filters": [], "budget": None}
    assert reports["metadata"]["selection"] == {"filters": ["--profile metadata"], "budget": None}
    written = json.loads((tmp_path / "one.json").read_text("utf-8"))
    assert {row["requirement"] for row in written["verdicts"]} == {"usage-adds-up"}


def test_a_profile_that_a_server_does_not_show_is_not_green_by_what_else_holds(
    tokenwire, tmp_path: Path
) -> None:
    write_folder(tmp_path / "good", whole("w1"), whole("w2"), streamed("s"))
    single = tokenwire("replay", "good", "--profile", "core")
    assert (single.returncode, "0 of" in single.stdout) == (0, False)
    both = tokenwire("replay", "good", "-q", "--profile", "core", "--profile", "openai", "--json", "r.json")
    assert both.returncode == ExitStatus.NOTHING_EVALUATED
    stream = printed(both)
    assert f"OpenAI v{VERSION}: not shown: no verdict on chat or completions with usage or logprobs" in stream
    assert printed(single).count("MUSTs") == 1, "one count on a screen"
    assert "good: does not show openai" in stream
    report = json.loads((tmp_path / "r.json").read_text("utf-8"))
    assert [(profile["name"], profile["shown"]) for profile in report["profiles"]] == [
        ("core", True),
        ("openai", False),
    ]
    jsonschema.validate(report, load_schema("report"))


def test_what_needs_nothing_of_a_profile_does_not_show_it() -> None:
    cell = standing("openai", {"answer-fits-schema": Verdict.PASS}, {"vllm"})
    assert (cell.holds, cell.shown) == (1, False)
    assert standing("openai", {"chat-role-comes-first": Verdict.PASS}, {"vllm"}).shown
    assert standing("core@1", {"answer-fits-schema": Verdict.PASS}, {"vllm"}).version == 1
    gateway = standing("gateway", {"gateway-keeps-the-ids": Verdict.FAIL}, {"vllm"})
    assert gateway.violated == ("gateway-keeps-the-ids",)


def test_a_profile_of_several_parts_is_shown_by_all_of_them() -> None:
    """A chat server with logprobs and no ids: a trainer cannot learn from it, whatever holds."""
    verdicts = dict.fromkeys(known_profiles()["rl"], Verdict.UNSUPPORTED)
    verdicts["chat-logprobs-count-the-tokens"] = Verdict.PASS
    assert standing("rl", verdicts, {"openai"}).missing == ("prompt ids", "output ids")
    verdicts["prompt-ids-are-the-input-ids"] = verdicts["logprobs-name-their-ids"] = Verdict.PASS
    assert standing("rl", verdicts, {"sglang"}).shown


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        ((Verdict.PASS, Verdict.PASS), "yes, all 2 MUSTs hold"),
        ((Verdict.PASS, Verdict.FAIL), "no, 1 of 2 MUSTs violated: logprobs-whole"),
        ((Verdict.PASS, Verdict.INCONCLUSIVE), "yes, 1 of 2 MUSTs hold; 1 undecided: logprobs-whole"),
        ((Verdict.UNSUPPORTED, Verdict.FAIL), "no, 1 of 1 MUSTs violated: logprobs-whole"),
        ((Verdict.UNSUPPORTED, Verdict.UNSUPPORTED), "not shown: no verdict on data of each token"),
    ],
)
def test_the_answer_of_a_profile_is_yes_no_or_not_shown(verdicts, words) -> None:
    judged = dict(zip(("logprobs-name-their-ids", "logprobs-whole"), verdicts, strict=True))
    found = standing("metadata", judged, {"sglang"})
    assert profile_in_words(found.as_json()) == f"Metadata v{VERSION}: {words}"


def test_a_violated_profile_is_a_no_where_a_part_of_it_is_not_shown() -> None:
    verdicts = {"arguments-are-json": Verdict.FAIL}
    words = profile_in_words(standing("agents", verdicts, {"openai"}).as_json())
    assert words.endswith("no, 1 of 1 MUSTs violated: arguments-are-json; no verdict on typed items")


def test_the_target_may_stand_in_the_file(tokenwire, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.tokenwire]\ntarget = "{NOBODY}"\ntimeout = 5\n', "utf-8")
    ran = tokenwire("check", "--trust")
    assert ran.returncode == ExitStatus.NOTHING_EVALUATED
    assert f"Nothing answers at {NOBODY}" in ran.stdout
    (tmp_path / "other.toml").write_text("timeot = 5\n", "utf-8")
    wrong = tokenwire("check", "--config", "other.toml")
    assert wrong.returncode == ExitStatus.USAGE
    assert "other.toml: timeot is not a setting; did you mean 'timeout'?" in printed(wrong)


def test_a_key_that_is_not_in_the_environment_is_missed(tokenwire) -> None:
    ran = tokenwire("check", "--target", NOBODY, "--header", "Authorization: Bearer env:NO_SUCH_KEY")
    assert ran.returncode == ExitStatus.USAGE
    assert "NO_SUCH_KEY is not set" in printed(ran)


def test_the_demo_server_names_a_wrong_value_before_an_unknown_field(tokenwire) -> None:
    body = {"input_ids": [65], "sampling_params": {"max_new_tokens": "many"}, "top_logprobs_num": 2}
    with demo_server() as url:
        refused = httpx.post(f"{url}/generate", json=body).json()
        del body["sampling_params"]
        unknown = httpx.post(f"{url}/generate", json=body).json()
    assert refused["error"]["message"] == "max_new_tokens cannot be many"
    assert unknown["error"]["message"] == "top_logprobs_num is not a field of this server"
    ran = tokenwire("demo", "--no-open")
    assert ran.returncode == ExitStatus.CONFORMS, printed(ran)
    assert "it has three bugs, and each of them may violate several requirements:" in ran.stdout
    quiet = tokenwire("demo", "--no-open", "-q").stdout
    assert "three bugs" not in quiet
    assert "the report, which can replay each failure: file://" in quiet


def test_a_run_says_where_its_report_is_and_how_much_it_sent(tokenwire, tmp_path: Path) -> None:
    with demo_server() as url:
        words = "check", "--target", url, "--scenario", "samples", "--max-requests", "40", "--report", "out"
        ran, quiet = tokenwire(*words), tokenwire(*words, "-q")
    line = ran.stdout.splitlines()[-2]
    found = re.fullmatch(r"sent (\d+) requests; the report is out/report.html", line)
    assert found, printed(ran)
    assert 5 < int(found[1]) <= 40
    assert "the report is" not in quiet.stdout


# Init and record


def test_init_does_not_write_over_a_file_nor_write_down_a_key(tokenwire, tmp_path: Path) -> None:
    (tmp_path / "tokenwire.toml").write_text("rate = 1\n", "utf-8")
    there = tokenwire("init", "--target", NOBODY)
    assert there.returncode == ExitStatus.USAGE
    assert "overwrite it with --force" in printed(there)
    key = tokenwire("init", "--target", NOBODY, "--force", "--header", "Authorization: Bearer abc")
    assert key.returncode == ExitStatus.USAGE
    assert "must not be in a file" in printed(key)
    nobody = tokenwire("init", "--target", NOBODY, "--force")
    assert nobody.returncode == ExitStatus.NOTHING_EVALUATED
    assert (tmp_path / "tokenwire.toml").read_text("utf-8") == "rate = 1\n"


def test_init_writes_its_file_where_nothing_can_be_remembered(tokenwire, tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with demo_server() as url:
        ran = tokenwire("init", "--target", url, XDG_STATE_HOME=str(tmp_path / "state"))
    assert ran.returncode == ExitStatus.CONFORMS
    assert "cannot store that" in printed(ran)
    assert (tmp_path / "tokenwire.toml").is_file()


def test_record_wants_an_empty_folder_and_a_server(tokenwire, bad: Path) -> None:
    assert tokenwire("record", "bad", "--target", NOBODY).returncode == ExitStatus.USAGE
    nobody = tokenwire("record", "new", "--target", NOBODY)
    assert nobody.returncode == ExitStatus.NOTHING_EVALUATED
    assert "Nothing answers" in nobody.stdout


# Baseline


@pytest.fixture
def known(tokenwire, bad: Path, tmp_path: Path) -> Path:
    """A baseline of all that the bad capture fails at, with reasons."""
    tokenwire("replay", "bad", "--json", "bad.json")
    ran = tokenwire("baseline", "update", "known.toml", "--from", "bad.json")
    assert ran.returncode == 0, printed(ran)
    path = tmp_path / "known.toml"
    text = path.read_text("utf-8").replace('reason = ""', 'reason = "a lost id"')
    path.write_text(text.replace('link = ""', 'link = "https://example.org/1"'), "utf-8")
    return path


def test_known_failures_do_not_fail_a_run_and_are_told_everywhere(
    tokenwire, known: Path, tmp_path: Path
) -> None:
    ran = tokenwire("replay", "bad", "--baseline", "known.toml", "--report", "out")
    assert ran.returncode == ExitStatus.CONFORMS, printed(ran)
    assert "known FAIL" in ran.stdout
    assert "a lost id (https://example.org/1)" in ran.stdout
    report = json.loads((tmp_path / "out/report.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(load_schema("report")).validate(report)
    failed = [row for row in report["verdicts"] if row["verdict"] == "FAIL"]
    assert failed
    assert all(row["known"] is True and row["kinds"] for row in failed)
    assert "known" in json.loads((tmp_path / "out/badge.json").read_text("utf-8"))["message"]
    assert "<failure" not in (tmp_path / "out/report.xml").read_text("utf-8")
    assert "What is known" in (tmp_path / "out/report.html").read_text("utf-8")
    results = json.loads((tmp_path / "out/report.sarif").read_text("utf-8"))["runs"][0]["results"]
    assert results
    assert all(result["suppressions"] for result in results if result["level"] == "error")


def test_a_baseline_that_has_become_stale_fails_the_run(tokenwire, known: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "good", whole("w1"), whole("w2"), streamed("s"))
    ran = tokenwire("replay", "good", "--baseline", "known.toml", "--report", "out", GITHUB_ACTIONS="true")
    assert ran.returncode == ExitStatus.VIOLATION
    assert "stale: no longer failing: 7 requirements, 7 entries: " in " ".join(ran.stdout.split())
    output = " ".join(ran.stdout.split())
    way_out = "remove with `tokenwire baseline update known.toml --from REPORT`"
    assert f"good: conforms; 7 entries of the baseline no longer fail: {way_out} (" in output
    assert "::error title=baseline%3A stale" in ran.stdout
    assert "<failure" in (tmp_path / "out/report.xml").read_text("utf-8")
    jsonschema.Draft202012Validator(load_schema("report")).validate(
        json.loads((tmp_path / "out/report.json").read_text("utf-8"))
    )
    aside = tokenwire("replay", "good", "--baseline", "known.toml", "-k", "choices-complete")
    assert aside.returncode == ExitStatus.CONFORMS, printed(aside)


def test_a_baseline_is_shown_checked_and_rewritten(tokenwire, known: Path, tmp_path: Path) -> None:
    assert "a lost id (https://example.org/1)" in tokenwire("baseline", "show", "known.toml").stdout
    assert tokenwire("baseline", "check", "known.toml", "--from", "bad.json").returncode == 0
    write_folder(tmp_path / "good", whole("w1"), whole("w2"), streamed("s"))
    tokenwire("replay", "good", "--json", "good.json")
    assert tokenwire("baseline", "check", "known.toml").returncode == 0
    stale = tokenwire("baseline", "check", "known.toml", "--from", "good.json")
    assert stale.returncode == ExitStatus.VIOLATION
    assert "stale: known.toml" in stale.stdout
    tokenwire("replay", "good", "-k", "ids", "--json", "some.json")
    refused = tokenwire("baseline", "update", "known.toml", "--from", "some.json")
    assert refused.returncode == ExitStatus.USAGE
    assert "some.json was made with -k" in printed(refused)
    assert ", 0 added, " in tokenwire("baseline", "update", "known.toml", "--from", "good.json").stdout
    assert "[[" not in known.read_text("utf-8")
    missing = tokenwire("replay", "good", "--baseline", "nowhere.toml")
    assert missing.returncode == ExitStatus.USAGE
    assert "tokenwire baseline update nowhere.toml" in printed(missing)


# Terminals


def on_a_terminal(folder: Path, *words: str, **environment: str) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    surroundings = {**os.environ, "TERM": "xterm-256color", **environment}
    command = [sys.executable, "-m", "tokenwire", *words]
    with subprocess.Popen(command, cwd=folder, stdout=theirs, stderr=theirs, env=surroundings) as process:
        os.close(theirs)
        written = b""
        try:
            while data := os.read(ours, 65536):
                written += data
        except OSError:  # how a terminal tells that the other side has gone
            pass
        process.wait()
    os.close(ours)
    return written.decode()


COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m")


def test_colours_are_for_terminals_and_for_those_who_want_them(tokenwire, bad: Path, tmp_path: Path) -> None:
    assert COLOUR.search(on_a_terminal(tmp_path, "replay", "bad"))
    assert not COLOUR.search(on_a_terminal(tmp_path, "replay", "bad", NO_COLOR="1"))
    assert "\x1b" not in tokenwire("replay", "bad").stdout


def test_a_shell_can_complete_commands_and_options(tokenwire) -> None:
    asked = {"_TOKENWIRE_COMPLETE": "complete_bash", "COMP_WORDS": "tokenwire che", "COMP_CWORD": "1"}
    command = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'tokenwire'; from tokenwire.cli import main; main()",
    ]
    ran = subprocess.run(
        command, env={**os.environ, **asked}, capture_output=True, text=True, check=False, timeout=60
    )
    assert "check" in ran.stdout.split()
