"""Faults of two servers that share each request: a prefill server and a decode server."""

from __future__ import annotations

from dataclasses import replace

from tokenwire_faults.acts import act_at
from tokenwire_faults.deliveries import OutputRow


@act_at("row")
def _handed_over_tokens_count_as_cached(row: OutputRow) -> OutputRow:
    count = row.prompt_tokens - 1
    return replace(row, cached_tokens=count, cached_tokens_details={"device": count, "host": 0})
