"""What the report says of capabilities: who speaks of them, and whether silence can be trusted."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import jsonschema
from hand_made_stream import ids_stream
from rich.console import Console

from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.report.document import document
from tokenwire.report.subject import Subject
from tokenwire.report.terminal import print_report
from tokenwire.requirement import load_requirements
from tokenwire.spec_files import load_schema
from tokenwire.target.advertised import Advertised
from tokenwire.target.honesty import SCENARIO, UNKNOWN_FIELD

STREAM = ids_stream([1], [2], name="here")
IGNORED = ids_stream([1], name=f"sglang-generate/{SCENARIO}/{UNKNOWN_FIELD}", scenario=SCENARIO)
RUN = Run((STREAM, IGNORED), Advertised(sampling_backend="mirror"), declared=frozenset({"logprobs", "text"}))


def report(run: Run = RUN) -> dict:
    subject = Subject(url="http://x", runs=(run,))
    written = document(subject, judge(subject.runs, [load_requirements()["logprobs-incremental"]]), 1)
    jsonschema.Draft202012Validator(load_schema("report")).validate(written)
    return written


def test_each_capability_has_three_sources() -> None:
    sources = report()["target"]["sources"]
    assert sources["text"] == {"declared": True, "advertised": "", "seen": "seen in here"}
    assert sources["logprobs"] == {"declared": True, "advertised": "", "seen": ""}
    assert sources["mirror-sampler"]["seen"] == ""
    assert "mirror" in sources["mirror-sampler"]["advertised"]
    assert "chat" not in sources


def test_a_run_tells_what_became_of_the_unknown() -> None:
    (honesty,) = report()["target"]["honesty"]
    assert honesty == {"trusted": False, "ignored": {UNKNOWN_FIELD: ["sglang-generate"]}, "refused": {}}
    assert report(replace(RUN, streams=(STREAM,)))["target"]["honesty"] == []


def test_a_declaration_that_is_not_shown_fails_and_can_be_printed() -> None:
    found = report()
    (row,) = found["verdicts"]
    assert row["verdict"] == "FAIL"
    assert row["message"] == "logprobs is declared, but no answer carries output logprobs"
    paper = StringIO()
    print_report(Console(file=paper, width=200), found, verbosity=1)
    assert "logprobs, as declared" in paper.getvalue()
    assert "capability: logprobs: not seen; declared" in paper.getvalue()
    assert "capability: text: seen in here; declared" in paper.getvalue()
