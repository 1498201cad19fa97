"""What `tokenwire check` wrote into its JSON report, as the tests ask for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DIALECTS = ["sglang-chat", "sglang-completions", "sglang-generate"]
"""What gateways before SGLang are asked as: at some other endpoints they hand on what they do not know."""
AS_SGLANG = tuple(word for name in DIALECTS for word in ("--dialect", name))


@dataclass(frozen=True)
class Report:
    """What `tokenwire check` found."""

    document: dict[str, Any]

    @property
    def dialects(self) -> list[str]:
        dialects: list[str] = self.document["target"]["dialects"]
        return dialects

    @property
    def left_out(self) -> dict[str, str]:
        left_out: dict[str, str] = self.document["target"]["left_out"]
        return left_out

    @property
    def detected(self) -> dict[str, str]:
        detected: dict[str, str] = self.document["target"]["detected"]
        return detected

    def requirements(self, verdict: str) -> set[str]:
        """The requirements that got a verdict in at least one scenario."""
        return {row["requirement"] for row in self.document["verdicts"] if row["verdict"] == verdict}

    def failed(self) -> set[tuple[str, str]]:
        """The requirements that failed, each with the scenarios in which it did."""
        rows = [row for row in self.document["verdicts"] if row["verdict"] == "FAIL"]
        return {(row["requirement"], row["scenario"]) for row in rows}

    def evidence(self, requirement: str) -> list[dict[str, Any]]:
        """All places where a requirement was seen violated."""
        rows = [row for row in self.document["verdicts"] if row["requirement"] == requirement]
        return [place for row in rows for place in row["evidence"]]
