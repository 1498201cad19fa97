"""The command line, as a user runs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from recorded import streamed, whole, write_folder

from tokenwire import __version__
from tokenwire.judging.verdict import ExitStatus
from tokenwire.spec_files import load_schema


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "good", whole("w1"), whole("w2"), streamed("s"))


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "bad", whole("w1"), whole("w2"), streamed("s", forgets_an_id=True))


def test_a_conforming_capture_ends_with_0_and_writes_both_reports(
    tokenwire, good: Path, tmp_path: Path
) -> None:
    ran = tokenwire("replay", str(good), "--json", "out/r.json", "--junit", "out/r.xml")
    assert ran.returncode == ExitStatus.CONFORMS, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1].startswith(f"{good}: conforms, as far as this run could see (")
    report = json.loads((tmp_path / "out/r.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(load_schema("report")).validate(report)
    assert report["exit_status"] == 0
    assert report["summary"]["PASS"] > 10
    assert report["summary"]["FAIL"] == 0
    suite = ElementTree.parse(tmp_path / "out/r.xml").getroot()[0]
    assert suite.get("name") == "tokenwire"
    assert int(suite.get("tests", "0")) == len(report["verdicts"])
    undecided = ("UNSUPPORTED", "NOT_TESTABLE", "INCONCLUSIVE")
    assert int(suite.get("skipped", "0")) == sum(report["summary"][name] for name in undecided)


def test_a_violation_ends_with_1_and_is_shown_everywhere(tokenwire, bad: Path, tmp_path: Path) -> None:
    ran = tokenwire("replay", str(bad), "--json", "r.json", "--junit", "r.xml", "-q")
    assert ran.returncode == ExitStatus.VIOLATION, ran.stdout + ran.stderr
    assert ran.stdout.startswith("FAIL  ")
    assert "FAIL  cumulative-ids-extend  in by-hand" in ran.stdout
    assert "first seen  s, event 5" in ran.stdout
    assert f"tokenwire replay {bad} --requirement cumulative-ids-extend" in ran.stdout
    failures = ElementTree.parse(tmp_path / "r.xml").getroot().findall(".//failure")
    assert any("cumulative-ids-extend" in (failure.text or "") for failure in failures)
    rows = json.loads((tmp_path / "r.json").read_text("utf-8"))["verdicts"]
    (row,) = [row for row in rows if row["requirement"] == "cumulative-ids-extend"]
    assert row["verdict"] == "FAIL"
    assert row["evidence"][0]["event"] == 5


def test_selection_by_requirement_keyword_and_first_failure(tokenwire, bad: Path, tmp_path: Path) -> None:
    ran = tokenwire("replay", str(bad), "--requirement", "usage-adds-up", "--json", "r.json")
    assert ran.returncode == ExitStatus.NOTHING_EVALUATED
    assert [
        row["requirement"] for row in json.loads((tmp_path / "r.json").read_text("utf-8"))["verdicts"]
    ] == ["usage-adds-up"]
    keyword = tokenwire("replay", str(bad), "-k", "cumulative-ids or done-ends", "-x", "--json", "k.json")
    assert keyword.returncode == ExitStatus.VIOLATION
    rows = json.loads((tmp_path / "k.json").read_text("utf-8"))["verdicts"]
    assert [row["requirement"] for row in rows] == ["cumulative-ids-extend"]
    nothing = tokenwire("replay", str(bad), "-k", "no-such-thing")
    assert nothing.returncode == ExitStatus.NOTHING_EVALUATED
    assert "no verdict" in nothing.stdout


def test_last_failed_judges_only_what_failed(tokenwire, bad: Path, tmp_path: Path) -> None:
    tokenwire("replay", str(bad), "--json", "all.json")
    tokenwire("replay", str(bad), "--lf", "--json", "lf.json")
    everything = json.loads((tmp_path / "all.json").read_text("utf-8"))["verdicts"]
    failed = [row for row in everything if row["verdict"] == "FAIL"]
    again = json.loads((tmp_path / "lf.json").read_text("utf-8"))["verdicts"]
    assert 0 < len(failed) < len(everything)
    assert [row["requirement"] for row in again] == [row["requirement"] for row in failed]


def test_tests_and_settings_of_the_folder_are_none_of_our_business(
    tokenwire, good: Path, tmp_path: Path
) -> None:
    (tmp_path / "test_of_theirs.py").write_text("def test_theirs(): assert False\n", "utf-8")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not yours')\n", "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n", "utf-8")
    ran = tokenwire("replay", str(good))
    assert ran.returncode == ExitStatus.CONFORMS, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("replay", "nowhere"), "does not exist"),
        (("replay", "good", "--requirement", "ids-are-countd"), "did you mean 'ids-are-counted'"),
        (("check", "--target", "http://127.0.0.1:1", "--scenario", "prob"), "did you mean 'probe'"),
        (("check", "--target", "http://127.0.0.1:1", "--dialect", "zzz"), "there is no dialect 'zzz'"),
        (("check", "--target", "http://127.0.0.1:1", "--header", "nonsense"), "a --header needs a colon"),
        (("check", "--target", "http://127.0.0.1:1", "--record", "good"), "is not an empty folder"),
        (("check", "--target", "ftp://host"), "not the URL of a server"),
        (("check",), "--target"),
        (("replay", "good", "-k", "(("), "-k"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_meant(tokenwire, good: Path, words, refusal: str) -> None:
    ran = tokenwire(*words)
    assert ran.returncode == ExitStatus.USAGE, ran.stdout + ran.stderr
    assert refusal in " ".join((ran.stderr + ran.stdout).replace("│", " ").split())


def test_a_file_that_is_no_capture_is_named(tokenwire, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n", "utf-8")
    ran = tokenwire("replay", "x.jsonl")
    assert ran.returncode == ExitStatus.USAGE
    assert "x.jsonl, line 1" in " ".join(ran.stderr.replace("│", " ").split())


def test_everything_can_be_listed(tokenwire) -> None:
    assert "probe" in tokenwire("list", "scenarios").stdout
    assert "POST|PUT /generate" in tokenwire("list", "dialects").stdout
    capabilities = tokenwire("list", "capabilities").stdout
    assert "customized-info" in capabilities
    assert all(re.search(r"  shown where (an?|the) ", line) for line in capabilities.splitlines()), (
        capabilities
    )
    assert len(tokenwire("list").stdout.splitlines()) > 80


def test_an_unknown_capability_is_not_declared_in_silence(tokenwire) -> None:
    ran = tokenwire("check", "--target", "http://127.0.0.1:1", "--declare", "logprob")
    assert ran.returncode == ExitStatus.USAGE
    assert "did you mean 'logprobs'?" in ran.stderr


@pytest.mark.parametrize("started", [["-m", "tokenwire"], [str(Path(sys.executable).with_name("tokenwire"))]])
def test_the_program_starts_under_either_name(started: list[str]) -> None:
    """From its very beginning; other tests start where it has imported everything."""
    command = [sys.executable, *started, "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (ran.returncode, ran.stdout) == (0, f"tokenwire {__version__}\n"), ran.stderr


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        ("--version", {"yaml", "rich", "httpx", "pytest", "tokenwire.settings"}),
        ("--help", {"yaml", "httpx", "pytest", "tokenwire.settings"}),
        ("list requirements", {"httpx", "pytest", "tokenwire.judging.judge", "tokenwire.dialects.dialect"}),
        ("explain ids-are-counted", {"httpx", "pytest", "tokenwire.judging.judge"}),
        ("parrot --help", {"httpx", "pytest", "numpy", "tokenwire.judging.judge"}),
        ("merge --help", {"httpx", "tokenwire.asking.run"}),
    ],
)
def test_a_command_imports_only_what_it_needs(words: str, unneeded: set[str]) -> None:
    program = f"""
import contextlib, io, sys
from tokenwire.cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    sys.argv = ["tokenwire", *{words.split()}]
    main()
print(*sys.modules)
"""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    imported = set(ran.stdout.split())
    assert "tokenwire.cli" in imported
    assert not imported & unneeded
