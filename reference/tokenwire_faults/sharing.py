"""Faults of two servers that share each request: one prefills, the other decodes."""

from __future__ import annotations

from tokenwire_faults.acts import at
from tokenwire_reference.core.stopping import StopRules


@at("stop_rules")
def _answer_of_the_prefill_server(rules: StopRules) -> StopRules:
    rules.max_new_tokens = min(rules.max_new_tokens, 1)
    return rules
