"""The plugin inside somebody's own pytest run, with pytest's own output."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hand_made_stream import ids_stream, made_up_row
from recorded import streamed, whole, write_folder

from tokenwire.checks.check import CHECKS, Check
from tokenwire.checks.evidence import expect
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.pytest_plugin import ConformanceItem, run_items
from tokenwire.report.subject import Subject


def pytest_with_plugin(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tokenwire.pytest_plugin",
        "-p",
        "no:cacheprovider",
        *words,
    ]
    # Other plugins that happen to be installed here are slow to start.
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=300, env=alone
    )


def test_a_capture_is_judged_in_the_place_of_test_files(tmp_path: Path) -> None:
    write_folder(tmp_path / "rec", whole("w1"), whole("w2"), streamed("s", forgets_an_id=True))
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n", "utf-8")
    ran = pytest_with_plugin(
        tmp_path,
        "--tokenwire-capture",
        "rec",
        "-k",
        "cumulative-ids-extend or usage-adds-up and not decision",
        "-rs",
    )
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED, ran.stdout + ran.stderr
    assert "FAIL  cumulative-ids-extend  in by-hand" in ran.stdout
    assert "1 failed, 1 skipped" in ran.stdout
    assert "UNSUPPORTED: usage: no answer carries a usage object" in ran.stdout
    assert "test_other" not in ran.stdout


def test_without_its_options_the_plugin_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n", "utf-8")
    ran = pytest_with_plugin(tmp_path)
    assert ran.returncode == pytest.ExitCode.OK
    assert "1 passed" in ran.stdout


def test_both_options_exclude_each_other(tmp_path: Path) -> None:
    ran = pytest_with_plugin(
        tmp_path, "--tokenwire-capture", "rec", "--tokenwire-target", "http://127.0.0.1:1"
    )
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "exclude each other" in ran.stderr


def test_a_target_that_is_not_there_is_told_in_words(tmp_path: Path) -> None:
    ran = pytest_with_plugin(tmp_path, "--tokenwire-target", "http://127.0.0.1:1")
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "Nothing answers at http://127.0.0.1:1" in ran.stderr


# Outcomes


@pytest.fixture
def judgements(monkeypatch: pytest.MonkeyPatch) -> list[Judgement]:
    """One judgement of each kind that matters to pytest."""

    def checks(stream, target):
        yield expect(stream.events[0].place, 1, 2 if stream.exchange.scenario == "bad" else 1)
        if stream.exchange.scenario == "crash":
            raise RuntimeError("the suite's own fault")

    monkeypatch.setitem(CHECKS, "made-up", Check("made-up", observe=checks))
    streams = (ids_stream([1], name=scenario, scenario=scenario) for scenario in ("good", "bad", "crash"))
    row = made_up_row(witnesses=1)
    unsupported = made_up_row(id="absent", applies_when=("usage",))
    run = Run(tuple(streams))
    return judge([run], [row]) + judge([run], [unsupported])


def test_verdicts_become_outcomes(judgements: list[Judgement], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    junit = tmp_path / "r.xml"
    subject = Subject(url="http://h", runs=(judgements[0].run,))
    ran, code = run_items(judgements, subject, junit=junit)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert [judgement.verdict for judgement in ran] == [
        Verdict.PASS,
        Verdict.FAIL,
        Verdict.HARNESS_ERROR,
        Verdict.UNSUPPORTED,
    ]
    text = junit.read_text("utf-8")
    assert 'errors="1" failures="1" skipped="1" tests="4"' in text
    assert "the suite&#x27;s own fault" in text or "the suite's own fault" in text
    assert 'classname="record" name="made-up[bad]"' in text


def test_the_first_failure_stops_and_what_did_not_run_is_not_told(
    judgements: list[Judgement], tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran, _ = run_items(judgements, Subject(url="http://h"), stop_at_first=True)
    assert [judgement.verdict for judgement in ran] == [Verdict.PASS, Verdict.FAIL]


def test_only_what_fails_becomes_an_item_where_all_is_told(
    judgements: list[Judgement], tmp_path: Path, monkeypatch
) -> None:
    """Each item costs as much as ten checks, and of one that passes pytest remembers nothing."""
    monkeypatch.chdir(tmp_path)
    made: list[str] = []
    make = ConformanceItem.__init__

    def note(self: ConformanceItem, **node: Any) -> None:
        made.append(node["judgement"].name)
        make(self, **node)

    monkeypatch.setattr(ConformanceItem, "__init__", note)
    subject = Subject(url="http://h")
    assert run_items(judgements, subject) == (judgements, pytest.ExitCode.TESTS_FAILED)
    assert made == ["made-up[bad]", "made-up[crash]"]
    again, _ = run_items(judgements, subject, last_failed=True)
    assert [item.name for item in again] == ["made-up[bad]", "made-up[crash]"]
    mended = [replace(judgement, verdict=Verdict.PASS) for judgement in judgements]
    made.clear()
    assert run_items(mended, subject) == (mended, pytest.ExitCode.OK)
    assert made == ["made-up[bad]", "made-up[crash]"]  # which pytest forgets now
    made.clear()
    assert run_items(mended, subject) == (mended, pytest.ExitCode.OK)
    assert made == []


def test_chapters_and_levels_are_keywords(judgements: list[Judgement], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    subject = Subject(url="http://h")
    assert len(run_items(judgements, subject, keyword="record and MUST")[0]) == 4
    assert run_items(judgements, subject, keyword="delivery") == ([], pytest.ExitCode.NO_TESTS_COLLECTED)


def test_other_plugins_and_options_of_the_environment_have_no_say(
    judgements: list[Judgement], tmp_path: Path, monkeypatch
) -> None:
    """Each costs every run time and memory, and may do what it likes to the items."""
    metadata = tmp_path / "foreign-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n", "utf-8")
    (metadata / "entry_points.txt").write_text("[pytest11]\nforeign = foreign_plugin\n", "utf-8")
    (tmp_path / "foreign_plugin.py").write_text("raise SystemExit('loaded')\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTEST_PLUGINS", "foreign_plugin")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k nothing")
    monkeypatch.chdir(tmp_path)
    ran, _ = run_items(judgements, Subject(url="http://h:1"))
    assert len(ran) == len(judgements)
