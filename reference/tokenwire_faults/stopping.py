"""Faults in stopping: stop strings, stop ids and budgets, and text held back for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy, deepcopy
from dataclasses import replace

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import Object, finish_of, without_news
from tokenwire_faults.fault import Fault
from tokenwire_reference.core.detokenizer import HALF, Detokenizer, spelling
from tokenwire_reference.core.output_streamer import WHOLE_INTERVAL
from tokenwire_reference.core.request import FinishReason
from tokenwire_reference.core.stopping import StopRules, _RunningText
from tokenwire_reference.doors.reader import Emission, Reader

Ids = Sequence[int]
Check = Callable[[Ids], FinishReason | None]


class _Rules(StopRules):
    """Wrong stop rules of a fault, which wrap the correct rules."""

    def __init__(self, true: StopRules, way: Check, *, within_the_budget: bool = False) -> None:
        """Initialize. With `within_the_budget`, the correct rules decide when the budget is used up."""
        self.__dict__.update(true.__dict__)
        self._true = true
        self._way = way
        self._within_the_budget = within_the_budget

    def check(self, output_ids: Ids) -> FinishReason | None:
        spent = self._within_the_budget and len(output_ids) >= self.max_new_tokens
        return self._true.check(output_ids) if spent else self._way(output_ids)


@act_at("events")
def _hold_back_missing(event: Object) -> Iterable[Object]:
    finish = finish_of(event)
    if not isinstance(finish, dict) or not isinstance(finish.get("matched"), str):
        return [event]
    shown = deepcopy(event)
    shown["meta_info"]["finish_reason"] = None
    shown["text"] += finish["matched"][:-1]
    is_cumulative = len(event["output_ids"]) == event["meta_info"]["completion_tokens"]
    return [shown, event if is_cumulative else without_news(event)]


@act_at("text")
def _held_text_never_released(reader: Reader, text: str) -> str:
    return text[:-2] if reader.request.sampling.stop else text


@act_at("taken")
def _held_text_sent_twice(reader: Reader, emission: Emission) -> Emission:
    again = emission.finish is not None and reader.request.sampling.stop
    return replace(emission, text=emission.text * 2) if again else emission


@act_at("text")
def _stop_string_shown(reader: Reader, text: str) -> str:
    stop = next(iter(reader.request.sampling.stop), "")
    return text if reader.request.sampling.no_stop_trim or text.endswith(stop) else text + stop


@act_at("text")
def _stop_begun_in_the_last_part_shown(reader: Reader, text: str) -> str:
    finish = reader.finish
    stop = finish.matched if finish is not None and isinstance(finish.matched, str) else ""
    return text + stop[: len(stop) // 2] if len(reader.request.output_ids) % WHOLE_INTERVAL == 1 else text


_BUDGETS = ("max_tokens", "max_completion_tokens")


@act_at("asked")
def _unnamed_budget_is_the_engines(body: Object) -> Object:
    named = body["sampling_params"] if "token_ids" in body else body
    if ("token_ids" in body or "messages" in body) and not any(map(named.get, _BUDGETS)):
        named["max_tokens"] = 16
    return body


@act_at("stop_rules")
def _stop_string_found_late(rules: StopRules) -> StopRules:
    return _Rules(rules, lambda ids: rules.check(ids[:-1]), within_the_budget=True)


@act_at("stop_rules")
def _stops_checked_at_the_end_of_a_run(rules: StopRules) -> StopRules:
    return _Rules(rules, lambda ids: rules.check(ids[:-2]), within_the_budget=True)


@act_at("stop_rules")
def _stop_strings_ignored(rules: StopRules) -> StopRules:
    def no_string(ids: Ids) -> FinishReason | None:
        finish = rules.check(ids)
        return None if finish and isinstance(finish.matched, str) else finish

    return _Rules(rules, no_string, within_the_budget=True)


@act_at("stop_rules")
def _stop_patterns_found_late(rules: StopRules) -> StopRules:
    patterns = {pattern.pattern for pattern in rules._patterns}
    matched: list[FinishReason] = []

    def late(ids: Ids) -> FinishReason | None:
        if matched:
            return matched[0]
        finish = rules.check(ids)
        if not finish or finish.matched not in patterns or len(ids) >= rules.max_new_tokens:
            return finish
        matched.append(finish)
        return None

    return _Rules(rules, late)


@act_at("stop_rules")
def _stop_ids_found_late(rules: StopRules) -> StopRules:
    def late(ids: Ids) -> FinishReason | None:
        finish = rules.check(ids)
        if finish is not None and type(finish.matched) is not int:
            return finish
        return rules.check(ids[:-1]) if len(ids) > 1 and ids[-2] in rules.stop_ids else None

    return _Rules(rules, late, within_the_budget=True)


@act_at("taken")
def _wrong_stop_named(reader: Reader, emission: Emission) -> Emission:
    finish, stops = emission.finish, reader.request.sampling.stop
    if finish is None or finish.matched not in stops:
        return emission
    return replace(emission, finish=replace(finish, matched=stops[0]))


@act_at("text")
def _stop_trimmed_against_the_wish(reader: Reader, text: str) -> str:
    stops = reader.request.sampling.stop if reader.request.sampling.no_stop_trim else ()
    return text.removesuffix(next(filter(text.endswith, stops), ""))


@act_at("stop_rules")
def _budget_not_used_up(rules: StopRules) -> StopRules:
    rules.max_new_tokens = max(rules.max_new_tokens - 1, min(rules.max_new_tokens, 1))
    return rules


@act_at("asked")
def _stop_set_changes_sampling(body: Object) -> Object:
    params = body if "messages" in body else body.get("sampling_params")
    if isinstance(params, dict) and not "".join(params.get("stop") or ()).isascii():
        params["logit_bias"] = {"5": 100}
    return body


@act_at("stop_rules")
def _cap_masks_the_stop(rules: StopRules) -> StopRules:
    def cap_first(ids: Ids) -> FinishReason | None:
        budget = rules.max_new_tokens
        return FinishReason("length", length=budget) if len(ids) >= budget else rules.check(ids)

    return _Rules(rules, cap_first)


@act_at("stop_rules")
def _stop_string_sought_in_few_tokens(fault: Fault, rules: StopRules) -> StopRules:
    tokenizer = fault.tokenizer
    if tokenizer is None or not rules._strings:
        return rules
    window = max(len(tokenizer.encode(stop, add_special_tokens=False)) for stop in rules._strings) + 1
    others = copy(rules)
    others._strings = ()

    def in_the_window(ids: Ids) -> FinishReason | None:
        finish = rules.check(ids)
        if finish is None or finish.matched not in rules._strings:
            return finish
        return finish if str(finish.matched) in tokenizer.decode(ids[-window:]) else others.check(ids)

    return _Rules(rules, in_the_window)


@act_at("stop_rules")
def _stop_sought_in_hidden_text(fault: Fault, rules: StopRules) -> StopRules:
    if fault.tokenizer is not None and rules._text is not None:
        shown = spelling(fault.tokenizer, skip_special_tokens=False)
        rules._text = _RunningText(Detokenizer(shown), rules._text._keep)
    return rules


@act_at("stop_rules")
def _stop_found_in_an_unfinished_character(fault: Fault, rules: StopRules) -> StopRules:
    tokenizer = fault.tokenizer
    if tokenizer is None or not any(HALF in stop for stop in rules._strings):
        return rules

    def in_all_decoded(ids: Ids) -> FinishReason | None:
        text = tokenizer.decode(ids, skip_special_tokens=True)
        found = next((stop for stop in rules._strings if stop in text), None)
        return rules.check(ids) if found is None else FinishReason("stop", matched=found)

    return _Rules(rules, in_all_decoded)


@act_at("stop_rules", "stop-of-a-broken-character-found-late")
def _wait_for_more(rules: StopRules) -> StopRules:
    def broken(finish: FinishReason | None) -> bool:
        return finish is not None and isinstance(finish.matched, str) and finish.matched.endswith(HALF)

    def late(ids: Ids) -> FinishReason | None:
        before, finish = rules.check(ids[:-1]), rules.check(ids)
        return before if broken(before) else None if broken(finish) else finish

    return _Rules(rules, late, within_the_budget=True)


@act_at("text")
def _stop_of_a_broken_character_found_late(reader: Reader, text: str) -> str:
    stops = [stop for stop in reader.request.sampling.stop if stop.endswith(HALF) and stop in text]
    return text[: text.find(stops[0])] if stops else text


@act_at("stop_rules")
def _stop_string_sought_in_the_prompt(fault: Fault, rules: StopRules) -> StopRules:
    sent = fault.request.get("input_ids") or fault.request.get("prompt") or ()
    prompt = sent[0] if sent and isinstance(sent[0], list) else sent
    if fault.tokenizer is None or not rules._strings or not isinstance(prompt, list):
        return rules
    text = fault.tokenizer.decode(prompt)
    found = next((stop for stop in rules._strings if stop in text), None)
    if found is None or not text.endswith(HALF):
        return rules
    matched = FinishReason("stop", matched=found)
    return _Rules(rules, lambda ids: matched if ids else rules.check(ids))
