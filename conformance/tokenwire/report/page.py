"""The report as one HTML file.

The page needs no network, and content from servers cannot harm the reader. The template escapes every value.
The content security policy forbids the page to load anything, and forbids all scripts except the player,
which the policy names by hash. The player inserts its data only as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from tokenwire.judging.judge import Judgement
from tokenwire.judging.verdict import ExitStatus, Verdict
from tokenwire.report.overview import FIRST_CAUSES, Row, missing_in_words, overview
from tokenwire.report.playback import Playback, playback_of
from tokenwire.report.plot import Plot, plot
from tokenwire.report.templates import template

_THREAD = "https://github.com/{repository}/{kind}/{number}"
_MOST_LETTERS = 3_000_000
"""The most characters of all playbacks on a page. Further playbacks are left out, and the page says so."""
_KINDS = {"PR": "pull", "issue": "issues"}
_COLOURS = {ExitStatus.CONFORMS: Verdict.PASS, ExitStatus.VIOLATION: Verdict.FAIL}


@dataclass(frozen=True)
class _Failure:
    """A violated requirement in one scenario, with its playback or its drawing."""

    row: Row
    plot: Plot | None = None
    playback: Playback | None = None
    number: int = 0
    """The index of the failure's playback among the data on the page."""

    @property
    def link(self) -> str:
        """The fragment of the failure's address. An event number may be appended."""
        return quote(f"{self.row['requirement']}/{self.row['scenario']}")


def _thread(words: str) -> str:
    """Return the URL of an issue or pull request such as `owner/name PR #1`; empty for other text."""
    repository, _, rest = words.partition(" ")
    kind, _, number = rest.partition(" #")
    if kind not in _KINDS or not number.isdecimal():
        return ""
    return _THREAD.format(repository=repository, kind=_KINDS[kind], number=number)


def _plot(row: Row) -> Plot | None:
    """Return the timeline drawing of a failure that has no playback."""
    exchange = row["evidence"][0]["exchange"]
    illegal = [found["event"] for found in row["evidence"] if found["exchange"] == exchange]
    return plot(row["exhibit"]["timeline"], illegal)


@cache
def player() -> str:
    """Return the JavaScript that plays the playbacks."""
    return files("tokenwire.report").joinpath("player.js").read_text("utf-8")


def policy(script: str) -> str:
    """Return the content security policy, which allows only the page's own style and this script."""
    allowed = "default-src 'none'; style-src 'unsafe-inline'"
    if not script:
        return allowed
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return f"{allowed}; script-src 'sha256-{digest}'"


def page(report: Mapping[str, Any], judgements: Sequence[Judgement] = ()) -> str:
    """Return a JSON report as an HTML page. `judgements`: the failures that get a playback."""
    view = overview(report)
    judged = {id(row): judgement for row, judgement in zip(report["verdicts"], judgements, strict=False)}
    played: list[dict[str, Any]] = []
    room = _MOST_LETTERS

    def failure(row: Row) -> _Failure:
        nonlocal room
        if "exhibit" not in row:
            return _Failure(row)
        playback = playback_of(judged[id(row)]) if id(row) in judged and room > 0 else None
        if playback is not None:
            embedded = playback.embedded()
            room -= len(json.dumps(embedded))
            if room > 0:
                played.append(embedded)
                return _Failure(row, None, playback, len(played) - 1)
        return _Failure(row, _plot(row))

    bad = [(summary, [failure(row) for row in summary.shown]) for summary in view.shown]
    script = player() if played else ""
    folded = {
        cause["requirement"]: {
            row["requirement"]: row
            for row in reversed(report["verdicts"])
            if row.get("follows_from") == cause["requirement"]
        }
        for cause in report.get("causes", ())
    }
    return template("tokenwire.report", "page.html.jinja").render(
        vars(view),
        thread=_thread,
        report=report,
        chapters=view.chapters,
        colour=_COLOURS.get(report["exit_status"], Verdict.WARN),
        wrong=any(summary.verdict is not Verdict.WARN for summary in view.shown),
        bad=bad,
        start_here=view.start_here,
        first=FIRST_CAUSES,
        missing=missing_in_words,
        folded=folded,
        crashed=Verdict.HARNESS_ERROR,
        policy=policy(script),
        script=Markup(script),
        played=htmlsafe_json_dumps(played, separators=(",", ":")),
        unplayed=sum(failure.playback is None for _, failures in bad for failure in failures)
        if played
        else 0,
    )
