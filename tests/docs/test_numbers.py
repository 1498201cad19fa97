"""Numbers in the README and in the guides are those of the program."""

from __future__ import annotations

import asyncio
import re

import pytest
from docs_build.published import ROOT

from tokenwire.ask import Budget
from tokenwire.asking.run import Plan, Unreached, rehearse
from tokenwire.asking.scenario import load_scenarios
from tokenwire.levels import levels
from tokenwire.profile import VERSION
from tokenwire.settings import Settings
from tokenwire_clients.behaviour import all_cases
from tokenwire_clients.vectors import load_doors

GUIDE = (ROOT / "docs" / "guides" / "check-a-server.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [README, *(path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md"))]
ROW = re.compile(r"^\| (all endpoints|chat only) \| (.+) \| (.+) \|$", re.MULTILINE)
DIALECTS = {"all endpoints": (), "chat only": ("openai-chat",)}
TOLERANCE = 0.07


def number(words: str) -> int:
    return int(words.replace(",", ""))


def test_the_guide_lists_what_a_quick_run_leaves_out():
    listed = GUIDE.partition("| area | scenarios")[2].partition("\n\n")[0]
    names = re.findall(r"`([a-z-]+)`", listed.partition("\n")[2])
    left_out = {name for name, known in load_scenarios().items() if known.budget is not Budget.QUICK}
    assert sorted(names) == sorted(left_out)


def planned(url: str, dialects: tuple[str, ...], budget: Budget) -> tuple[int, int]:
    """Return the most requests and output tokens of a run."""
    settings = Settings(target=url, dialect=dialects, budget=budget)
    costs = asyncio.run(rehearse(Plan(settings)))
    assert not isinstance(costs, Unreached)
    return sum(cost.requests for cost in costs.values()), sum(cost.output_tokens for cost in costs.values())


@pytest.fixture(scope="module")
def rows():
    """Return the requests and output tokens in the guide, for each server in both budgets."""
    found = {}
    for server, *cells in ROW.findall(GUIDE):
        for budget, words in zip((Budget.STANDARD, Budget.QUICK), cells, strict=True):
            found[server, budget] = tuple(map(number, re.findall(r"\d[\d,]*(?= )", words)))
    return found


def test_the_guide_counts_requests_as_a_plan_does(start_reference, rows):
    url = start_reference("--model", "builtin:parrot")
    assert len(rows) == 4
    for (server, budget), claimed in rows.items():
        assert claimed == pytest.approx(planned(url, DIALECTS[server], budget), rel=TOLERANCE)


def test_the_readme_counts_requests_as_the_guide_does(rows):
    flat = README.replace("\n", " ")
    [claimed] = re.findall(r"at most about ([\d,]+) requests, a plain chat server ([\d,]+)\.", flat)
    assert [*map(number, claimed)] == [rows[server, Budget.STANDARD][0] for server in DIALECTS]


def test_every_page_counts_the_cases_for_clients_alike():
    served = len(all_cases())
    stored = sum(len(door.cases) for door in load_doors().values())
    claimed = {found for page in PAGES for found in re.findall(r"serves? ([\d,]+) cases", page)}
    assert claimed == {f"{served:,}"}
    assert re.findall(r"([\d,]+) streams to test clients with", README) == [f"{stored:,}"]


def test_an_example_names_the_newest_version_of_the_profiles():
    date = next(iter(levels().values())).date
    named = {found for page in PAGES for found in re.findall(r"Tokenwire (\S+ v\d+):", page)}
    assert named == {f"{date} v{VERSION}"}
