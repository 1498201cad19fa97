"""A model that settles ids in blocks, on two ranks: clients cannot tell, and a missed stop is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from reference_configurations import tokenwire as check

from tokenwire.judging.verdict import ExitStatus

FLAGS = (
    "--model",
    "builtin:diffusion",
    "--dp-size",
    "2",
    "--incremental-streaming-output",
    "--enable-faults",
)
FAULT = "x-tokenwire-fault: stops-checked-at-the-end-of-a-run"


def test_nothing_is_violated(start_reference: Callable[..., str], tmp_path: Path) -> None:
    url = start_reference(*FLAGS)
    report = check(
        tmp_path, "check", "--target", url, "--budget", "quick", "--dialect", "sglang-generate", "--no-keep"
    )
    passed = {row["requirement"] for row in report["verdicts"] if row["verdict"] == "PASS"}
    assert {"cumulative-ids-extend", "stream-is-legal-delivery"} & passed


def test_ids_behind_a_stop_in_a_block_are_found(tokenwire, start_reference: Callable[..., str]) -> None:
    asked = ("--dialect", "sglang-generate", "--scenario", "stop-ids", "--no-keep")
    ran = tokenwire("check", "--target", start_reference(*FLAGS), "--header", FAULT, *asked)
    assert ran.returncode == ExitStatus.VIOLATION, ran.stdout + ran.stderr
