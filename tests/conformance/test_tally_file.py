"""Tallies: several replays make the report of one, and what is no tally is refused in words."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import streamed, whole, write_folder

from tokenwire.baselines.tolerance import outcomes_of
from tokenwire.judging.judge import combined, judge_runs
from tokenwire.replay import replay
from tokenwire.report import tally_file
from tokenwire.report.document import as_json, document
from tokenwire.report.page import page
from tokenwire.report.tally_file import Replayed, Selection, merged, read_tally, write_tally
from tokenwire.requirement import load_requirements
from tokenwire.usage_error import UsageError

Command = Callable[..., CompletedProcess[str]]
ROOT = Path(__file__).parents[2]
ONE = "cumulative-ids-extend"


@pytest.fixture
def captures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Of three servers: one that errs, one that does not, and one that errs otherwise."""
    write_folder(tmp_path / "bad", whole("w1"), whole("w2"), streamed("s", forgets_an_id=True))
    write_folder(tmp_path / "good", whole("w1"), whole("w2"), streamed("s"))
    write_folder(tmp_path / "alone", streamed("s", forgets_an_id=True), streamed("t"))
    monkeypatch.chdir(tmp_path)
    return [Path("bad"), Path("good"), Path("alone")]


def judged(*captures: Path) -> Replayed:
    subject, rows = replay(captures), load_requirements()
    return Replayed(subject, tuple(rows), Selection(), judge_runs(subject.runs, list(rows.values())))


def written_and_read(replayed: Replayed, name: str) -> tuple[str, Replayed]:
    write_tally(replayed, Path(name))
    return name, read_tally(Path(name))


def report(replayed: Replayed) -> dict[str, Any]:
    """What all forms of a report are made from."""
    judgements = combined(replayed.judged)
    written = document(replayed.subject, judgements, 1)
    return {
        "document": as_json(written),
        "page": page(written, judgements),
        "bodies": [
            judgement.run.by_exchange[judgement.violations[0].place.exchange]
            for judgement in judgements
            if judgement.violations
        ],
        "known failures": outcomes_of(judgements),
    }


def test_a_merge_of_replays_is_the_replay_of_all(captures: list[Path]) -> None:
    first, *others = captures
    at_once = judged(*captures)
    shown = report(at_once)
    assert '"exhibit"' in shown["document"]
    assert '"witness"' in shown["document"]
    parts = [written_and_read(judged(first), "first.gz"), written_and_read(judged(*others), "others.gz")]
    put_into_one = merged(parts)
    assert report(put_into_one) == shown
    # What was merged merges again, and a tally holds the same however it came about.
    assert report(written_and_read(put_into_one, "all.gz")[1]) == shown
    write_tally(at_once, Path("at-once.gz"))
    assert Path("all.gz").read_bytes() == Path("at-once.gz").read_bytes()


def test_causes_of_a_gateway_are_those_of_one_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of causes needs the requests of all violating answers, and who was beside the server."""
    monkeypatch.chdir(tmp_path)
    gateway = judged(ROOT / "fixtures" / "litellm" / "1.106.2" / "live-before-vllm.jsonl.gz")
    written = written_and_read(gateway, "gateway.gz")
    causes = json.loads(report(gateway)["document"])["causes"]
    assert "gateway-keeps-the-ids" in [row["requirement"] for cause in causes for row in cause["follow"]]
    assert report(merged([written])) == report(gateway)


def test_however_replays_are_grouped_the_merge_is_the_same(captures: list[Path]) -> None:
    first, second, third = (written_and_read(judged(path), f"{path}.gz") for path in captures)
    left = merged([written_and_read(merged([first, second]), "left.gz"), third])
    right = merged([first, written_and_read(merged([second, third]), "right.gz")])
    assert report(left) == report(right) == report(merged([first, second, third]))


def test_the_commands_do_that(tokenwire: Command, captures: list[Path]) -> None:
    first, *others = map(str, captures)
    for paths, tally in (([first], "first.gz"), (others, "others.gz")):
        tokenwire("replay", *paths, "--tally", tally, "--requirement", ONE)
    at_once = tokenwire("replay", first, *others, "--requirement", ONE, "--json", "one.json")
    put_into_one = tokenwire("merge", "first.gz", "others.gz", "--json", "two.json")
    assert put_into_one.stdout == at_once.stdout.replace("one.json", "two.json")
    assert put_into_one.returncode == at_once.returncode == 1
    assert Path("two.json").read_bytes() == Path("one.json").read_bytes()


def rewritten(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> Path:
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    change(lines)
    path.write_bytes(gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in lines)))
    return path


@pytest.fixture
def written(captures: list[Path]) -> Path:
    subject, row = replay(captures[:1]), load_requirements()[ONE]
    judgements = judge_runs(subject.runs, [row])
    write_tally(Replayed(subject, (ONE,), Selection((ONE,)), judgements), Path("one.gz"))
    return Path("one.gz")


def test_what_is_no_tally_is_refused_in_words(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = written.read_bytes()
    for change, words in (
        (lambda lines: lines.pop(), "is incomplete; write it"),
        (lambda lines: lines[0].update(tokenwire="0.0.0"), "written by tokenwire 0.0.0"),
        (lambda lines: lines[0].update(format=9), "not the head of a tally file"),
        (lambda lines: lines[0].update(requirements=["x"]), "'x' is not a requirement"),
        (lambda lines: lines.insert(1, {"kind": "x"}), "line 2: .*'x' is not a kind of line"),
        (lambda lines: lines.append({"kind": "run"}), "there are lines after the last line"),
        (lambda lines: lines[-1].update(runs=2), "the file has 1 runs, not 2"),
        (lambda lines: lines.pop(-2), "judgements on 0 of 1 requirements"),
        (lambda lines: lines[-2]["judgements"][0].update(verdict="x"), "'x' is not a valid Verdict"),
    ):
        written.write_bytes(whole)
        with pytest.raises(UsageError, match=words):
            read_tally(rewritten(written, change))
    written.write_bytes(whole[:-20])
    with pytest.raises(UsageError, match="not a complete gzipped file"):
        read_tally(written)
    written.write_bytes(whole)
    for limit in ("_MOST_BYTES", "_MOST_VALUES"):
        with monkeypatch.context() as patch:
            patch.setattr(tally_file, limit, 100)
            with pytest.raises(UsageError, match="merge fewer captures"):
                read_tally(written)


def test_what_was_judged_otherwise_is_not_merged(written: Path, captures: list[Path]) -> None:
    other = written_and_read(judged(captures[1]), "other.gz")
    with pytest.raises(UsageError, match=r"other.gz was judged with different requirements from one.gz"):
        merged([("one.gz", read_tally(written)), other])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.frozensets(st.text())
    ),
    max_leaves=10,
)


@given(values)
def test_values_from_the_wire_come_back_as_they_were(value: object) -> None:
    packed = json.loads(json.dumps(tally_file._packed(value), allow_nan=False))
    assert repr(tally_file._unpacked(packed)) == repr(value) or tally_file._unpacked(packed) == value
