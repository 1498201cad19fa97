"""A correct server that does not repeat itself fails nothing: near ties go either way, logprobs move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from reference_configurations import tokenwire, verdicts

from tokenwire.judging.verdict import Verdict


@pytest.mark.parametrize("dialect", ["sglang-generate", "sglang-chat"])
def test_no_difference_by_chance_is_a_failure(
    start_reference: Callable[..., str], tmp_path: Path, dialect: str
) -> None:
    """Larger shares, again and again: `nox -s near_ties`."""
    url = start_reference("--sampling-backend", "mirror", "--near-ties", "0.05")
    asked = (
        "--target",
        url,
        "--budget",
        "quick",
        "--dialect",
        dialect,
        "--record",
        str(tmp_path / "recorded"),
    )
    live = verdicts(tokenwire(tmp_path, "check", *asked))
    assert [row for row, seen in live.items() if Verdict.FAIL in seen] == []
    again = verdicts(tokenwire(tmp_path, "replay", str(tmp_path / "recorded")))
    assert [row for row, seen in again.items() if Verdict.FAIL in seen] == []
