"""Files of known differences: what they cover, what does not hold, and how they are written."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from recorded import IDS, document, write_folder
from recorded import whole as recorded_whole

from tokenwire.judging.verdict import ExitStatus
from tokenwire.replay import replay
from tokenwire.report.console import make_console
from tokenwire.usage_error import UsageError
from tokenwire.wire.exchange import Exchange, Read
from tokenwire_twin.compare_forms import as_junit, as_summary
from tokenwire_twin.difference_report import DifferenceReport, compare_sides, side_of
from tokenwire_twin.known import apply_known, read_known, updated
from tokenwire_twin.terminal import print_difference

EXAMPLES = Path(__file__).parents[2] / "examples"
TODAY = date(2026, 11, 28)
LINK = "https://example.org/issues/1"


def answering(name: str, change: Callable[[dict[str, Any]], None]) -> Exchange:
    body = document(IDS, finished=True)
    change(body)
    return replace(recorded_whole(name, "greedy"), reads=(Read(0.1, json.dumps(body).encode()),))


def new_field(body: dict[str, Any]) -> None:
    body["meta_info"]["new"] = 1


def other_version(body: dict[str, Any]) -> None:
    body["meta_info"]["weight_version"] = "next"


@pytest.fixture
def differing(tmp_path: Path) -> Callable[..., DifferenceReport]:
    """Compares a server with one that changes its answers."""

    def compare(*changes: Callable[[dict[str, Any]], None]) -> DifferenceReport:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))

        def change(body: dict[str, Any]) -> None:
            for one in changes:
                one(body)

        sides = []
        for name, made in (("one", lambda body: None), ("other", change)):
            exchanges = [answering(exchange, made) for exchange in ("p1", "p2")]
            sides.append(side_of(name, replay([write_folder(folder / name, *exchanges)])))
        return compare_sides(*sides)

    return compare


def written(path: Path, report: DifferenceReport, **words: str) -> Path:
    path.write_text(updated(path, report, **words).text, "utf-8")
    return path


def applied(path: Path, report: DifferenceReport, *, complete: bool = True) -> DifferenceReport:
    return apply_known(report, read_known(path), complete=complete, today=TODAY)


def test_a_comparison_with_only_known_differences_is_a_success(tmp_path: Path, differing) -> None:
    report = differing(new_field)
    assert report.exit_status == ExitStatus.VIOLATION
    file = written(tmp_path / "known.toml", report, reason="a feature of B", link=LINK)
    known = applied(file, report)
    assert known.exit_status == ExitStatus.CONFORMS
    assert known.faults == ()
    assert {family.known for family in known.families if family.known} == {f"a feature of B ({LINK})"}


def test_a_new_difference_beside_known_ones_fails(tmp_path: Path, differing) -> None:
    file = written(tmp_path / "known.toml", differing(new_field), reason="a feature of B", link=LINK)
    report = applied(file, differing(new_field, other_version))
    assert report.exit_status == ExitStatus.VIOLATION
    assert [family.subject for family in report.families if family.decides] == ["/meta_info/weight_version"]


def test_the_same_difference_at_another_endpoint_is_new(tmp_path: Path, differing) -> None:
    report = differing(new_field)
    file = written(tmp_path / "known.toml", report, reason="a feature of B", link=LINK)
    text = file.read_text("utf-8")
    file.write_text(text.replace("sglang-generate", "sglang-chat"), "utf-8")
    assert applied(file, report).differ


@pytest.mark.parametrize(
    ("words", "change", "fault"),
    [
        ({"link": LINK}, ("", ""), "it has no reason"),
        ({"reason": "known"}, ("", ""), "its link is ''"),
        (
            {"reason": "known", "link": LINK},
            ("seen =", "expires = 2026-11-27\nseen ="),
            "it expired on 2026-11-27",
        ),
    ],
)
def test_an_entry_that_does_not_hold_fails(
    tmp_path: Path, differing, words: dict[str, str], change: tuple[str, str], fault: str
) -> None:
    report = differing(new_field)
    file = written(tmp_path / "known.toml", report, **words)
    file.write_text(file.read_text("utf-8").replace(*change), "utf-8")
    result = applied(file, report)
    assert result.exit_status == ExitStatus.VIOLATION
    assert fault in result.faults[0]
    assert result.differ, "what it covers is not known"


def test_an_entry_that_covers_nothing_is_told_where_all_was_asked(tmp_path: Path, differing) -> None:
    file = written(tmp_path / "known.toml", differing(new_field), reason="known", link=LINK)
    same = differing()
    assert applied(file, same, complete=False).exit_status == ExitStatus.CONFORMS
    result = applied(file, same)
    assert result.exit_status == ExitStatus.VIOLATION
    assert "it covers nothing; remove it with --update" in result.faults[0]


def test_an_update_keeps_comments_and_reasons_and_removes_what_has_gone(tmp_path: Path, differing) -> None:
    file = written(tmp_path / "known.toml", differing(new_field, other_version), reason="first", link=LINK)
    text = file.read_text("utf-8").replace(
        '[[difference]]\nfamily = "field', '# Ask Ann.\n[[difference]]\nfamily = "field'
    )
    file.write_text(text.replace("seen = 2", "seen = 1"), "utf-8")
    update = updated(file, differing(new_field), reason="second", link=LINK)
    assert (update.kept, update.added) == (1, ())
    assert [name.partition(":")[0] for name in update.removed] == ["value /meta_info/weight_version"]
    assert "# Ask Ann.\n" in update.text
    assert 'reason = "first"' in update.text
    assert "seen = 2" in update.text, "it is counted again"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[differences]]\n", "'differences' is unknown"),
        ("[difference]\nfamily = 'x'\n", "is not a list of tables"),
        ("[[difference]]\nfamly = 'x'\n", "famly"),
        ("difference = [", "is not TOML"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "known.toml").write_text(text, "utf-8")
    with pytest.raises(UsageError, match=words):
        read_known(tmp_path / "known.toml")


def test_junit_and_summary_tell_new_from_known(tmp_path: Path, differing) -> None:
    file = written(tmp_path / "known.toml", differing(new_field), reason="a feature", link=LINK)
    report = applied(file, differing(new_field, other_version))
    suite = ET.fromstring(as_junit(report))
    failed = [case.get("name", "") for case in suite if case.find("failure") is not None]
    skipped = [case.get("name") for case in suite if case.find("skipped") is not None]
    assert [name.partition(":")[0] for name in failed] == ["value /meta_info/weight_version"]
    assert skipped == ["field /meta_info/new: only in B"]
    assert (suite.get("failures"), suite.get("skipped"), suite.get("tests")) == ("1", "1", "2")
    summary = as_summary(report, "different")
    assert "| other fields | `field /meta_info/new: only in B` | 2 | a feature" in summary
    same = ET.fromstring(as_junit(differing()))
    assert [case.get("name") for case in same] == ["A and B are the same"]


def test_the_terminal_tells_what_is_known(
    tmp_path: Path, differing, capsys: pytest.CaptureFixture[str]
) -> None:
    report = differing(new_field)
    file = written(tmp_path / "known.toml", report, reason="a feature", link=LINK)
    print_difference(make_console(), applied(file, report))
    assert "the same but for 1 known differences" in capsys.readouterr().out


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.glob("known-differences-*.toml")), ids=lambda path: path.stem
)
def test_an_example_is_a_file_of_known_differences(path: Path) -> None:
    entries = read_known(path).entries
    assert len(entries) > 50
    assert len({entry.family for entry in entries}) == len(entries)
    assert all(entry.reason and entry.link for entry in entries)
