"""What the guide says of two gateways is what the interop tests pin."""

from __future__ import annotations

import re
from pathlib import Path

from test_gateways import SGLANG_ROUTER, SMG, Gateway

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "check-a-gateway.md"
ROW = re.compile(r"^\| `([\w-]+)` \| ([^|]*?) ?\| ([^|]*?) ?\| .+ \|$", re.MULTILINE)


def pinned(gateway: Gateway) -> dict[str, str]:
    return {
        **dict.fromkeys(gateway.violated, "FAIL"),
        **dict.fromkeys(gateway.remarked, "WARN"),
        **dict.fromkeys(gateway.perhaps, "in some runs"),
    }


def test_the_guide_tells_what_is_pinned() -> None:
    guide = GUIDE.read_text("utf-8")
    columns = f"| {SGLANG_ROUTER.package} {SGLANG_ROUTER.version} | {SMG.package} {SMG.version} |"
    assert f"| requirement {columns} what happens |" in guide
    rows = ROW.findall(guide)
    for gateway, column in ((SGLANG_ROUTER, 1), (SMG, 2)):
        assert {row[0]: row[column] for row in rows if row[column]} == pinned(gateway)
