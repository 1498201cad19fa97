"""`tokenwire replay --diff`: what is judged otherwise than the expected verdicts beside a capture say."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded import streamed, whole, write_file, write_folder
from typer.testing import CliRunner, Result

from tokenwire.baselines.expected import Judged, difference, expected_file, read_expected
from tokenwire.checks.evidence import Observation
from tokenwire.cli import app
from tokenwire.judging.verdict import ExitStatus, Verdict
from tokenwire.record import Place
from tokenwire.usage_error import UsageError


def replay(*words: object) -> Result:
    return CliRunner().invoke(app, ["replay", "--diff", *map(str, words)])


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A capture with its expected verdicts; what it holds violates nothing."""
    path = write_file(tmp_path / "case.jsonl", whole("whole"), streamed("stream"))
    assert replay("--update", path).exit_code == ExitStatus.CONFORMS
    return path


def test_nothing_differs_from_what_was_written_down(capture: Path) -> None:
    ran = replay(capture)
    assert (ran.exit_code, ran.output) == (
        ExitStatus.CONFORMS,
        "0 of 1 captures have other verdicts than expected\n",
    )
    assert expected_file(str(capture)).read_text("utf-8") == "{}\n", "a file lists what is violated"


def test_a_requirement_that_passes_is_not_listed(capture: Path) -> None:
    """So a new requirement changes only the files of captures that violate it."""
    write_file(capture, whole("whole"), streamed("stream", forgets_an_id=True))
    replay("--update", capture)
    outcomes = read_expected(expected_file(str(capture))).outcomes
    assert outcomes["cumulative-ids-extend"].verdict is Verdict.FAIL
    assert Verdict.PASS not in {outcome.verdict for outcome in outcomes.values()}


def test_an_older_file_may_list_what_passes(capture: Path) -> None:
    expected_file(str(capture)).write_text("PASS:\n- cumulative-ids-extend\n", "utf-8")
    assert replay(capture).exit_code == ExitStatus.CONFORMS


def test_a_violation_that_is_gone_is_reported(capture: Path) -> None:
    expected_file(str(capture)).write_text("FAIL:\n  cumulative-ids-extend: [stream]\n", "utf-8")
    assert "cumulative-ids-extend: FAIL (1) → PASS" in replay(capture).output


def test_a_new_violation_is_told_with_what_was_and_the_first_evidence(capture: Path) -> None:
    write_file(capture, whole("whole"), streamed("stream", forgets_an_id=True))
    ran = replay(capture)
    assert ran.exit_code == ExitStatus.VIOLATION
    assert f"{capture.parent / 'case'}\n" in ran.output
    assert "cumulative-ids-extend: not listed → FAIL (1)\n    stream, event 5" in ran.output
    assert replay(capture).output == ran.output, "a look changes nothing"
    assert replay("--requirement", "done-ends-the-stream", capture).exit_code == ExitStatus.CONFORMS


def test_another_exchange_of_the_same_verdict_is_told(capture: Path) -> None:
    write_file(capture, whole("whole"), streamed("first", forgets_an_id=True))
    replay("--update", capture)
    write_file(capture, whole("whole"), streamed("second", forgets_an_id=True))
    assert "FAIL (1) → FAIL (1); also second; no longer first" in replay(capture).output


def test_an_update_keeps_the_tokenizer_and_makes_peace(capture: Path) -> None:
    file = expected_file(str(capture))
    tiny = Path(__file__).parents[2] / "fixtures" / "models" / "tiny-qwen2"
    file.write_text(f"tokenizer: {tiny}\n", "utf-8")
    assert replay(capture).exit_code == ExitStatus.VIOLATION
    assert "verdicts were updated" in replay("--update", capture).output
    assert replay(capture).exit_code == ExitStatus.CONFORMS
    assert read_expected(file).tokenizer == str(tiny)


def test_an_update_of_some_requirements_leaves_all_others_as_they_are(capture: Path) -> None:
    write_file(capture, whole("whole"), streamed("stream", forgets_an_id=True))
    file = expected_file(str(capture))
    file.write_text("FAIL:\n  prompt-tokens-constant: [stream]\n", "utf-8")
    updated = replay("--update", "--requirement", "cumulative-ids-extend", capture).output
    assert "not listed → FAIL (1)" in updated
    rest = replay(capture).output
    assert rest.count("not listed →") > 0
    assert "cumulative-ids-extend" not in rest
    assert "prompt-tokens-constant" in file.read_text("utf-8")


def test_a_capture_without_expected_verdicts_differs(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "run", whole("whole"), streamed("stream"))
    ran = replay(folder)
    assert ran.exit_code == ExitStatus.VIOLATION
    assert "run.expected.yaml" in ran.output
    assert "--update" in ran.output


def test_a_capture_of_one_exchange_with_expected_verdicts_is_a_capture_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    alone = write_file(folder / "alone.jsonl", whole("whole"))
    assert replay("--update", alone).exit_code == ExitStatus.CONFORMS
    ran = replay(folder)
    assert ran.output == "0 of 1 captures have other verdicts than expected\n"


@pytest.mark.parametrize("text", ["[]", "FAIL: 3", "GREEN: [a]", "{"])
def test_a_file_that_holds_no_verdicts_is_named(text: str, capture: Path) -> None:
    file = expected_file(str(capture))
    file.write_text(text, "utf-8")
    with pytest.raises(UsageError, match=r"case\.expected\.yaml"):
        read_expected(file)
    assert replay(capture).exit_code == ExitStatus.USAGE


@pytest.mark.parametrize(
    "words",
    [
        ("--json", "report.json"),
        ("-k", "ids"),
    ],
)
def test_what_says_nothing_to_a_diff_is_refused(words: tuple[str, ...], capture: Path) -> None:
    assert replay(*words, capture).exit_code == ExitStatus.USAGE


def test_an_update_without_a_diff_is_refused(capture: Path) -> None:
    assert CliRunner().invoke(app, ["replay", "--update", str(capture)]).exit_code == ExitStatus.USAGE


def test_evidence_holds_nothing_that_a_terminal_acts_on(capture: Path) -> None:
    file = expected_file(str(capture))
    file.write_text("FAIL:\n  cumulative-ids-extend: [stream]\n", "utf-8")
    place = Place("stream", 3, "/\x1b[2J")
    violation = Observation(place, "", "", False, "finish is \x1b]0;owned\x07")
    evidence = {"cumulative-ids-extend": violation}
    lines = difference(Judged(file, {}, evidence, read_expected(file), {}, ()))
    assert any("owned" in line for line in lines)
    assert not any("\x1b" in line for line in lines)
