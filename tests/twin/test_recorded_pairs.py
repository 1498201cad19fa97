"""Recorded servers side by side: a server and itself are the same, and each known difference has a line."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path

import pytest

from tokenwire.judging.verdict import ExitStatus
from tokenwire.report.console import make_console
from tokenwire_twin.difference import Gravity
from tokenwire_twin.difference_report import DifferenceReport, compare_sides, read_side
from tokenwire_twin.families import Family
from tokenwire_twin.known import apply_known, read_known
from tokenwire_twin.terminal import print_difference

HERE = Path(__file__).parent / "recordings"
ROOT = Path(__file__).parents[2]
LIVE = ROOT / "tests" / "conformance" / "recordings" / "live"
FIXTURES = ROOT / "fixtures"
TWICE = [
    ("vllm/0.32.0-cpu/live-parrot-quick", "vllm/0.32.0-cpu/live-parrot-quick-again"),
    ("sglang/0.5.23/live-gentle", "sglang/0.5.23/live-gentle-again"),
]
"""Servers that were recorded twice, started in one way."""
STANDARD = (LIVE / "vllm-0.33-python-standard", LIVE / "vllm-0.33-rust-standard")
PARSERS = (HERE / "vllm-python-parsers", HERE / "vllm-rust-parsers")
CHANNELS = (HERE / "channels-python", HERE / "channels-rust")
BAD_WORDS = (HERE / "bad-words-python", HERE / "bad-words-rust")
PROMPTS = (HERE / "prompts-python", HERE / "prompts-rust")


@cache
def compared(one: Path, other: Path) -> DifferenceReport:
    return compare_sides(*(read_side(f"{side}.jsonl.gz") for side in (one, other)))


def named(report: DifferenceReport, name: str) -> Family:
    """Return the family of a name that makes the sides different."""
    [family] = [family for family in report.families if name in family.name and family.decides]
    return family


@pytest.mark.parametrize("names", TWICE, ids=[names[0] for names in TWICE])
def test_a_server_and_itself_are_the_same(names: tuple[str, str]) -> None:
    report = compared(FIXTURES / names[0], FIXTURES / names[1])
    assert [family.name for family in report.families if family.decides] == []
    assert [row.requirement for row in report.verdicts if row.decides] == []
    assert report.exit_status == ExitStatus.CONFORMS
    assert report.repeated > 300


def printed(report: DifferenceReport, columns: int, monkeypatch, capsys) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    print_difference(make_console(), replace(report, one="python.jsonl.gz", other="rust.jsonl.gz"))
    lines: list[str] = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    return lines


@pytest.mark.parametrize("sides", [STANDARD, PARSERS], ids=["standard", "parsers"])
def test_two_front_ends_fit_on_four_screens(sides: tuple[Path, Path], monkeypatch, capsys) -> None:
    lines = printed(compared(*sides), 100, monkeypatch, capsys)
    assert len(lines) <= 120
    text = " ".join(" ".join(lines).split())
    assert "field /usage: only in A" in text
    assert "top-logprobs-have-k" in text


@pytest.mark.parametrize("sides", [CHANNELS, BAD_WORDS, PROMPTS], ids=["channels", "bad-words", "prompts"])
def test_front_ends_that_differ_in_few_things_are_read_on_60_lines(
    sides: tuple[Path, Path], monkeypatch, capsys
) -> None:
    assert len(printed(compared(*sides), 100, monkeypatch, capsys)) <= 60


@pytest.mark.parametrize("sides", [STANDARD, PARSERS], ids=["standard", "parsers"])
@pytest.mark.parametrize("columns", [80, 100])
def test_the_first_screen_answers_the_question(
    sides: tuple[Path, Path], columns: int, monkeypatch, capsys
) -> None:
    lines = printed(compared(*sides), columns, monkeypatch, capsys)
    text = "\n".join(lines[:40])
    for subject in Gravity:
        assert subject is Gravity.REMARKS or f"  {subject} " in text
    text = " ".join(text.split())
    assert "/v1/messages: B does not serve it: status 501" in text
    assert "prompt as a list of lists" in text, "batches are refused"
    assert re.search(r"with prompt [^:]*\bn of 2", text), "samples are refused"
    if sides is PARSERS:
        assert "the whole text is reasoning in A and content in B" in text
    else:
        assert "channels not compared: no answer of A or B has text that is split into reasoning" in text
    assert "top_logprobs: more in B, as many as a concurrent request asked for" in text


_TOTAL = re.compile(r"requirements broken by (?:B alone|A alone|both, but differently): (\d+)")


@pytest.mark.parametrize("sides", [STANDARD, PARSERS], ids=["standard", "parsers"])
def test_all_numbers_add_up(sides: tuple[Path, Path], monkeypatch, capsys) -> None:
    report = compared(*sides)
    text = "\n".join(printed(report, 100, monkeypatch, capsys))
    head, *blocks = text.split("\n\n")
    kinds = [int(found) for found in re.findall(r"^  [a-z, A-Z]+? +(\d+) +[\d,]+  ", head, re.MULTILINE)]
    assert f"({sum(kinds)} kinds of difference" in " ".join(blocks[-1].split())
    for block in blocks:
        if total := _TOTAL.match(block):
            lines = block.splitlines()[1:]
            shown = sum(line.startswith(("  FAIL", "  WARN")) for line in lines)
            also = re.findall("the same answers also break ((?:\\S+, )*\\S+)", " ".join(block.split()))
            more = re.search("… (\\d+) more: ", block)
            count = shown + sum(len(names.split(", ")) for names in also) + int(more[1] if more else 0)
            assert count == int(total[1]), block
    uncompared = re.search(r"^([\d,]+) exchanges? (?:is|are) not compared: see the end$", head, re.MULTILINE)
    end = " ".join(blocks[-1].split())
    parts = re.findall(
        r"not compared, because [^:]+: (\d+) exchanges?((?:, \d+ of [\w-]+(?: other \w+)?)+)", end
    )
    assert int(uncompared[1] if uncompared else 0) == sum(int(count) for count, _ in parts)
    for count, scenarios in parts:
        assert sum(map(int, re.findall(r"(\d+) of ", scenarios))) == int(count)


def test_a_server_error_comes_before_a_refusal() -> None:
    gravities = [family.gravity for family in compared(*STANDARD).families]
    assert gravities[0] is Gravity.FAILED
    refused = named(compared(*STANDARD), "stop is not supported")
    assert refused.gravity is Gravity.REFUSED_B


def test_each_message_of_a_server_has_its_speaker(monkeypatch, capsys) -> None:
    text = " ".join(" ".join(printed(compared(*STANDARD), 100, monkeypatch, capsys)).split())
    assert "with stop: B says: stop is not supported." in text
    assert "B fails with 500: B says: failed to submit chat request" in text
    assert "at line 1 column" not in text


def test_the_alternatives_of_a_position_are_called_candidates() -> None:
    leaks = [family for family in compared(*STANDARD).families if family.leak]
    words = [family.example.message for family in leaks]
    assert words
    wanted = r"entry \d+: \d+ candidates? in A, \d+ in B; \d+ top candidates? requested"
    assert all(re.fullmatch(wanted, message) for message in words), words


def test_no_line_counts_more_exchanges_than_were_asked() -> None:
    report = compared(*STANDARD)
    assert report.exchanges_that_differ <= report.asked
    assert f"of {report.asked:,} exchanges" in report.outcome


def test_what_a_neighbour_asked_for_is_named_as_the_cause() -> None:
    for sides in (STANDARD, PARSERS):
        leaks = [family for family in compared(*sides).families if family.leak]
        assert {family.subject.rpartition("/")[2] for family in leaks} == {"top_logprobs"}
        assert {family.says for family in leaks} == {"more in B"}


def test_an_error_of_the_server_is_no_refusal() -> None:
    family = named(compared(*STANDARD), "status: 400 in A, 500 in B")
    assert family.gravity is Gravity.FAILED
    assert family.example.message.startswith("A refuses with 400, B fails with 500: B says: failed to")


def test_what_refused_requests_have_in_common_is_named() -> None:
    report = compared(*STANDARD)
    assert named(report, "Only n=# is supported").asked.startswith("with n of 2")
    assert named(report, "stop is not supported").asked == "with stop"


def test_the_example_of_known_differences_covers_the_two_front_ends() -> None:
    known = read_known(ROOT / "examples" / "known-differences-vllm-0.33.0.toml")
    report = apply_known(compared(*STANDARD), known, complete=True, today=date(2026, 11, 28))
    assert report.faults == ()
    assert [row.name for row in report.rows if row.decides] == []
    assert report.exit_status == ExitStatus.CONFORMS
    assert report.known == len(known.entries)


def test_families_are_few_and_the_gravest_come_first() -> None:
    report = compared(*STANDARD)
    families = [family for family in report.families if family.gravity is not Gravity.REMARKS]
    assert len(families) <= 60
    assert sum(family.count for family in families) > 1000
    order = list(Gravity)
    ranks = [order.index(family.gravity) for family in report.families]
    assert ranks == sorted(ranks)


def test_an_endpoint_that_one_side_lacks_is_one_difference() -> None:
    report = compared(*STANDARD)
    family = named(report, "endpoint /v1/responses")
    assert (family.example.message, list(family.at)) == (
        "B does not serve it: status 404",
        ["openai-responses"],
    )
    assert not any("openai-responses" in name for name in report.only_one)


def test_usage_that_one_endpoint_lacks_is_one_field() -> None:
    family = named(compared(*STANDARD), "field /usage: ")
    assert (family.says, list(family.at)) == ("only in A", ["vllm-generate"])
    assert family.count > 50


WHOLE_TEXT = "the whole text is reasoning in A and content in B"


def family_of(sides: tuple[Path, Path], says: str) -> Family:
    """Return the family with a description."""
    [family] = [family for family in compared(*sides).families if family.says == says]
    return family


def test_text_in_another_channel_is_one_sentence() -> None:
    for sides in (PARSERS, CHANNELS):
        family = family_of(sides, WHOLE_TEXT)
        assert family.gravity is Gravity.CHANNELS
    assert family_of(PARSERS, WHOLE_TEXT).count > 100
    assert family_of(PARSERS, f"{WHOLE_TEXT}, and the texts differ").count > 10
    lost = named(compared(*CHANNELS), "channels: tool calls in A, content and tool calls in B")
    assert any("behind-a-call" in name for name in lost.exchanges)


def test_words_that_one_side_does_not_ban_change_its_ids() -> None:
    """Each request was asked once of each side, under names that differ."""
    report = compared(*BAD_WORDS)
    assert report.exchanges == 3
    family = named(report, "output ids: differ")
    assert family.exchanges == ("bad-words/python/completions",)
    assert "bad_words" in family.asked


def test_another_prompt_comes_before_all_that_follows_from_it() -> None:
    report = compared(*PROMPTS)
    family = named(report, "prompt ids: differ")
    assert family.exchanges == ("chat-prompts/python/two-text-parts",)
    gravities = [family.gravity for family in report.families if family.decides]
    assert gravities[:2] == [Gravity.REFUSED_B, Gravity.PROMPT]


def test_sides_without_a_common_request_are_not_the_same() -> None:
    report = compared(BAD_WORDS[0], PROMPTS[1])
    assert report.exchanges == 0
    assert report.exit_status == ExitStatus.NOTHING_EVALUATED
