"""Modes that users combine: the reference in them has nothing to tell of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

PARSERS = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
SCENARIOS = ("channels", "chat-empty-text", "chat-stop-string", "held-text")


def test_a_parrot_in_the_shapes_of_vllm_with_parsers(
    tokenwire: Callable[..., CompletedProcess[str]], start_reference: Callable[..., str], tmp_path: Path
) -> None:
    url = start_reference("--model", "builtin:parrot", "--api-dialect", "vllm", *PARSERS)
    only = (word for scenario in SCENARIOS for word in ("--scenario", scenario))
    ran = tokenwire("check", "--target", url, "--budget", "quick", "--no-keep", "--json", "r.json", *only)
    report = json.loads((tmp_path / "r.json").read_text("utf-8"))
    wrong = [row for row in report["verdicts"] if row["verdict"] in {"FAIL", "WARN", "HARNESS_ERROR"}]
    assert [(row["requirement"], row["scenario"]) for row in wrong] == []
    passed = {row["requirement"] for row in report["verdicts"] if row["verdict"] == "PASS"}
    assert {"answer-fits-schema", "keys-do-not-come-and-go", "channels-hold-all-text"} <= passed
    assert ran.returncode == 0
