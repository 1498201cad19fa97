"""`tokenwire compare` as a user runs it: servers, recordings and reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenwire.judging.verdict import ExitStatus

FEW = ("--dialect", "sglang-generate", "--scenario", "greedy-stream")


def test_two_servers_of_one_kind_are_the_same_however_they_stream(
    tokenwire, start_reference: Callable[..., str]
) -> None:
    urls = start_reference(), start_reference("--stream-interval", "4")
    ran = tokenwire("compare", *urls, *FEW)
    assert ran.returncode == ExitStatus.CONFORMS, ran.stdout + ran.stderr
    assert "\nA and B: the same, as far as could be compared; " in ran.stdout


def test_a_faulty_fork_differs_from_its_upstream(
    tokenwire, start_reference: Callable[..., str], tmp_path: Path
) -> None:
    url = start_reference("--enable-faults")
    tokenwire("record", "upstream", "--target", url, *FEW)
    tokenwire("record", "fork", "--target", url, *FEW, "--header", "x-tokenwire-fault: last-token-twice")
    ran = tokenwire("compare", "upstream", "fork", "--json", "difference.json")
    assert ran.returncode == ExitStatus.VIOLATION, ran.stdout + ran.stderr
    document = json.loads((tmp_path / "difference.json").read_text("utf-8"))
    assert document["same"] is False
    assert document["compared"]["exchanges"] > 0
    assert "output ids" in {difference["kind"] for difference in document["differences"]}
    live = tokenwire("compare", url, "upstream", *FEW)
    assert live.returncode == ExitStatus.CONFORMS, live.stdout + live.stderr


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("nowhere", "nowhere"), ExitStatus.USAGE),
        (("http://127.0.0.1:1", "nowhere"), ExitStatus.NOTHING_EVALUATED),
        (("ftp://host", "nowhere"), ExitStatus.USAGE),
        (("one.json", "one.json"), ExitStatus.USAGE),
    ],
)
def test_wrong_usage(tokenwire, tmp_path: Path, words: tuple[str, str], status: int) -> None:
    (tmp_path / "one.json").write_text("[]", "utf-8")
    assert tokenwire("compare", *words).returncode == status


def reference(*flags: str) -> str:
    """The command of a reference server."""
    words = ("tokenwire_reference", "serve", "--model", "builtin:tiny", "--port", "{port}", *flags)
    return f"{sys.executable} -m {' '.join(words)}"


def test_both_sides_are_started_one_after_the_other(tokenwire, tmp_path: Path) -> None:
    sides = ("--a-command", reference(), "--b-command", reference("--stream-interval", "4"))
    ran = tokenwire("compare", *sides, *FEW, "--json", "difference.json", "--ready", "/health")
    assert ran.returncode == ExitStatus.CONFORMS, ran.stdout + ran.stderr
    document = json.loads((tmp_path / "difference.json").read_text("utf-8"))
    assert document["one"].startswith(sys.executable)
    assert document["compared"]["exchanges"] > 0


def test_both_sides_get_the_same_requests(tokenwire, tmp_path: Path) -> None:
    """Prompts that no cache has seen, ids and unknown names are drawn once for both."""
    sides = ("--a-command", reference(), "--b-command", reference())
    names = ("cache-keys", "honesty", "request-id", "flushed-cache")
    asked = [word for name in names for word in ("--scenario", name)]
    ran = tokenwire("compare", *sides, *asked, "--json", "difference.json", "--ready", "/health")
    assert ran.returncode == ExitStatus.CONFORMS, ran.stdout + ran.stderr
    document = json.loads((tmp_path / "difference.json").read_text("utf-8"))
    assert [found["family"] for found in document["differences"] if found["kind"] == "request"] == []
    assert document["only_one"] == document["only_other"] == []
    assert document["compared"]["exchanges"] > 30


@pytest.mark.parametrize(
    ("sides", "words"),
    [
        (("--a-command", "true", "nowhere"), "has no {port}; write"),
        (("--a-command", "sh -c 'echo port {port} is taken; exit 3'", "nowhere"), "ended with status 3"),
        (("--a-command", "no-such-program {port}", "nowhere"), "cannot be started"),
        (("nowhere",), "B is missing"),
        (("--a-command", "true", "one", "other"), "is a third side"),
    ],
)
def test_a_side_that_cannot_be_started_is_named(tokenwire, sides: tuple[str, ...], words: str) -> None:
    ran = tokenwire("compare", *sides)
    assert ran.returncode == ExitStatus.USAGE
    assert words in " ".join(ran.stderr.replace("│", " ").split())


def test_the_reference_and_itself_are_the_same_at_all_doors(
    tokenwire, start_reference: Callable[..., str], tmp_path: Path
) -> None:
    """A prompt that is new to the first side is known to the second, because both are one server."""
    url = start_reference()
    scenarios = (
        "cache-keys",
        "greedy-stream",
        "probe",
        "usage",
        "sampling-fields",
        "uneven-ends",
        "item-turns",
    )
    asked = [word for name in scenarios for word in ("--scenario", name)]
    ran = tokenwire("compare", url, url, *asked, "--json", "difference.json")
    assert ran.returncode == ExitStatus.CONFORMS, ran.stdout + ran.stderr
    document = json.loads((tmp_path / "difference.json").read_text("utf-8"))
    assert document["compared"]["exchanges"] > 50
