"""The limits of the user hold for every request that reaches a server, whoever of the suite sends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from subprocess import CompletedProcess

import pytest

from tokenwire.asking.preflight import least_requests
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.verdict import ExitStatus
from tokenwire.local_server import LocalHandler, serving

Run = Callable[..., CompletedProcess[str]]
FIRST = least_requests([load_dialects()["sglang-generate"]])
"""The requests that find out what a target is, which is asked in one dialect."""
MOST = FIRST + 8
ONE_DIALECT = ("--dialect", "sglang-generate", "--scenario", "request-id", "--scenario", "budget-sweep")
GOOD = {
    "text": " a b",
    "output_ids": [1, 2],
    "meta_info": {"id": "x", "finish_reason": {"type": "length", "length": 2}, "completion_tokens": 2},
}


@contextmanager
def counting(statuses: Sequence[int]) -> Iterator[tuple[str, list[str]]]:
    """A server that answers requests for tokens with these statuses, and the last of them from then on."""
    seen: list[str] = []
    asked = iter(statuses)
    known = threading.Lock()

    class Handler(LocalHandler):
        def do_GET(self) -> None:  # noqa: N802  # so it is called
            with known:
                seen.append(self.path)
            self.send_json(404, {})

        def do_POST(self) -> None:  # noqa: N802  # so it is called
            self.rfile.read(int(self.headers["Content-Length"]))
            with known:
                seen.append(self.path)
                status = next(asked, statuses[-1])
            self.send_json(status, GOOD if status == 200 else {}, {"Retry-After": "0"})

    with serving(Handler, 0) as url:
        yield url, seen


SERVERS = {
    "healthy": [200],
    "busy": [503],
    "busy-later": [200] * 4 + [429],
    "now-and-then-busy": [200, 200, 429] * 100,
    "failing": [200, 200, 500],
    "failing-once": [200, 500] * 100,
}


@pytest.mark.parametrize("statuses", SERVERS.values(), ids=SERVERS)
def test_no_more_requests_reach_a_server_than_it_may_get(tokenwire: Run, statuses: list[int]) -> None:
    with counting(statuses) as (url, seen):
        ran = tokenwire(
            "check", "--target", url, *ONE_DIALECT, "--max-requests", str(MOST), "--timeout", "1", "--no-keep"
        )
    assert len(seen) <= MOST
    assert "Traceback" not in ran.stdout + ran.stderr


def test_the_whole_purse_is_used_and_the_report_says_so(tokenwire: Run) -> None:
    with counting([200]) as (url, seen):
        ran = tokenwire("check", "--target", url, *ONE_DIALECT, "--max-requests", str(MOST), "--no-keep")
    assert len(seen) == MOST
    assert f"not asked: {MOST} of --max-requests {MOST} are sent" in ran.stdout


def test_both_sides_of_a_comparison_share_the_limit(tokenwire: Run) -> None:
    with counting([200]) as (first, seen), counting([200]) as (other, seen_too):
        tokenwire("compare", first, other, *ONE_DIALECT, "--max-requests", str(2 * MOST))
    assert len(seen) == len(seen_too) == MOST


def test_a_worker_and_a_twin_are_asked_within_the_limit(tokenwire: Run) -> None:
    more = ("--dialect", "sglang-generate", "--no-keep", "--max-requests")
    with counting([200]) as (first, seen), counting([200]) as (other, seen_too):
        target = ("check", "--target", first, "--budget", "quick")
        tokenwire(*target, "--worker", other, *more, str(4 * MOST))
        assert FIRST <= len(seen_too) < len(seen) + len(seen_too) <= 4 * MOST
        seen.clear()
        seen_too.clear()
        tokenwire(*target, "--twin", other, *more, str(4 * MOST))
        assert FIRST <= len(seen_too) < len(seen) + len(seen_too) <= 4 * MOST
        seen.clear()
        seen_too.clear()
        tokenwire("twin", "--a", first, "--b", other, *more[:2], "--max-requests", str(4 * MOST))
        assert FIRST <= len(seen_too) < len(seen) + len(seen_too) <= 4 * MOST


@pytest.mark.parametrize("limit", [("--max-requests", str(FIRST - 1)), ("--max-tokens", "3")])
def test_a_limit_that_does_not_pay_for_the_first_requests_is_a_sentence(
    tokenwire: Run, limit: tuple[str, str]
) -> None:
    with counting([200]) as (url, seen):
        ran = tokenwire("check", "--target", url, *ONE_DIALECT, *limit)
    words = " ".join((ran.stdout + ran.stderr).split())
    assert ran.returncode == ExitStatus.USAGE, words
    assert f"takes {FIRST} requests at least, and the limits do not pay for them" in words
    assert f"of {' '.join(limit)} are" in words
    assert len(seen) < FIRST
    assert seen == [] or limit[0] == "--max-tokens"


def test_a_plan_counts_what_the_limits_count(tokenwire: Run) -> None:
    with counting([200]) as (url, _):
        planned = tokenwire("check", "--target", url, *ONE_DIALECT, "--plan").stdout
        most = planned.partition("At most ")[2].partition(" requests")[0].replace(",", "")
        ran = tokenwire("check", "--target", url, *ONE_DIALECT, "--max-requests", most, "--json", "r.json")
    assert "The limits count them." in planned
    assert "not asked" not in ran.stdout
    assert int(most) > FIRST
