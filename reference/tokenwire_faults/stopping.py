"""Faults in stopping: stop strings, stop ids and budgets, and the text that waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any

from tokenwire_faults.answer_shape import finish_of, without_news
from tokenwire_faults.catalogue import INCREMENTAL, STREAMED, WHOLE, fault
from tokenwire_faults.fault import Fault
from tokenwire_reference.core.detokenizer import HALF, Detokenizer, spelling
from tokenwire_reference.core.output_streamer import WHOLE_INTERVAL
from tokenwire_reference.core.request import FinishReason
from tokenwire_reference.core.stopping import StopRules, _RunningText
from tokenwire_reference.doors.request_manager import Emission, Reader

Check = Callable[[Sequence[int]], FinishReason | None]


class _Rules(StopRules):
    """Stop rules that ask the true ones in their own way."""

    def __init__(self, true: StopRules, way: Callable[[Check, Sequence[int]], FinishReason | None]) -> None:
        self.__dict__.update(true.__dict__)
        self._true = true
        self._way = way

    def check(self, output_ids: Sequence[int]) -> FinishReason | None:
        spent = len(output_ids) >= self.max_new_tokens
        return self._true.check(output_ids) if spent else self._way(self._true.check, output_ids)


@fault(
    "hold-back-missing",
    "X11",
    upstream=("vllm-project/vllm issue #3574", "jundot/omlx issue #2386", "sgl-project/sglang PR #25634"),
    shows_in=STREAMED,
)
class HoldBackMissing(Fault):
    """Text that may become a stop string is sent at once: 'DEF', 'G', 'HI', then stop 'DEFGHIJ' is found."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        finish = finish_of(event)
        if not isinstance(finish, dict) or not isinstance(finish.get("matched"), str):
            return [event]
        shown = deepcopy(event)
        shown["meta_info"]["finish_reason"] = None
        shown["text"] += finish["matched"][:-1]
        is_cumulative = len(event["output_ids"]) == event["meta_info"]["completion_tokens"]
        return [shown, event if is_cumulative else without_news(event)]


@fault(
    "held-text-never-released",
    "X11",
    upstream=("vllm-project/vllm PR #8468", "ggml-org/llama.cpp PR #9867"),
)
class HeldTextNeverReleased(Fault):
    """Text held back for a stop string is lost where the generation ends otherwise."""

    def text(self, reader: Reader, text: str) -> str:
        return text[:-2] if reader.request.sampling.stop else text


@fault(
    "held-text-sent-twice",
    "X03",
    upstream=("ggml-org/llama.cpp issue #10914",),
    shows_in=(INCREMENTAL,),
)
class HeldTextSentTwice(Fault):
    """What was held back is sent, and sent again with what follows: ' Alice', then ' Alice!'."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        again = emission.finish is not None and self.request.get("stream") and reader.request.sampling.stop
        return replace(emission, text=emission.text * 2) if again else emission


@fault(
    "stop-string-shown",
    "X12",
    upstream=("smg-project/smg PR #2203", "vllm-project/vllm issue #57052"),
)
class StopStringShown(Fault):
    """The stop string stays in the text."""

    def text(self, reader: Reader, text: str) -> str:
        stop = next(iter(reader.request.sampling.stop), "")
        return text if reader.request.sampling.no_stop_trim or text.endswith(stop) else text + stop


@fault(
    "stop-begun-in-the-last-part-shown", "X12", upstream=("sgl-project/sglang PR #35157",), shows_in=(WHOLE,)
)
class StopBegunInTheLastPartShown(Fault):
    """A whole answer is put together of parts of 50 tokens, and what a part had of the stop stays."""

    def text(self, reader: Reader, text: str) -> str:
        finish = reader.finish
        stop = finish.matched if finish is not None and isinstance(finish.matched, str) else ""
        begun = len(reader.request.output_ids) % WHOLE_INTERVAL == 1 and not self.request.get("stream")
        return text + stop[: len(stop) // 2] if begun else text


@fault(
    "stop-string-found-late",
    "X16",
    upstream=("sgl-project/sglang PR #23802", "sgl-project/sglang PR #25980"),
)
class StopStringFoundLate(Fault):
    """The stop string is found one token late: that token stays, and the trim misses its place."""

    def stop_rules(self, rules: StopRules) -> StopRules:
        return _Rules(rules, lambda check, ids: check(ids[:-1]))


@fault(
    "stops-checked-at-the-end-of-a-run",
    "X13",
    upstream=("sgl-project/sglang PR #11819", "sgl-project/sglang issue #31599"),
)
class StopsCheckedAtTheEndOfARun(Fault):
    """Tokens are accepted three at a time, and a stop in the first is seen after the third."""

    def stop_rules(self, rules: StopRules) -> StopRules:
        return _Rules(rules, lambda check, ids: check(ids[:-2]))


@fault(
    "stop-strings-ignored",
    "X12",
    upstream=("vllm-project/vllm issue #57052", "InternLM/lmdeploy issue #1731"),
)
class StopStringsIgnored(Fault):
    """Stop strings have no effect: they are compared with whole tokens."""

    def stop_rules(self, rules: StopRules) -> StopRules:
        def no_string(check: Check, ids: Sequence[int]) -> FinishReason | None:
            finish = check(ids)
            return None if finish and isinstance(finish.matched, str) else finish

        return _Rules(rules, no_string)


class _PatternsLate(StopRules):
    """Stop rules that see what a pattern matches only when the next token came."""

    def __init__(self, true: StopRules) -> None:
        self.__dict__.update(true.__dict__)
        self._true = true
        self._late: FinishReason | None = None

    def check(self, output_ids: Sequence[int]) -> FinishReason | None:
        finish = self._late or self._true.check(output_ids)
        by_pattern = finish and finish.matched in {pattern.pattern for pattern in self._patterns}
        if self._late or not by_pattern or len(output_ids) >= self.max_new_tokens:
            return finish
        self._late = finish
        return None


@fault(
    "stop-patterns-found-late",
    "X12",
    upstream=("sgl-project/sglang PR #23802",),
)
class StopPatternsFoundLate(Fault):
    """What a stop pattern matches is looked for in all tokens but the newest."""

    def stop_rules(self, rules: StopRules) -> StopRules:
        return _PatternsLate(rules)


@fault(
    "stop-ids-found-late",
    "X13",
    upstream=("sgl-project/sglang issue #31599",),
)
class StopIdsFoundLate(Fault):
    """A stop id ends the choice one token later: a step of several tokens is checked at its end."""

    def stop_rules(self, rules: StopRules) -> StopRules:
        def late(check: Check, ids: Sequence[int]) -> FinishReason | None:
            finish = check(ids)
            if finish is not None and type(finish.matched) is not int:
                return finish
            return check(ids[:-1]) if len(ids) > 1 and ids[-2] in rules.stop_ids else None

        return _Rules(rules, late)


@fault(
    "wrong-stop-named",
    "X12",
    upstream=("sgl-project/sglang PR #25980",),
)
class WrongStopNamed(Fault):
    """The first stop string of the request is named as the one that ended the choice, whichever did."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        finish, stops = emission.finish, reader.request.sampling.stop
        if finish is None or finish.matched not in stops:
            return emission
        return replace(emission, finish=replace(finish, matched=stops[0]))


@fault(
    "stop-trimmed-against-the-wish",
    "X12",
    upstream=("vllm-project/vllm issue #57052",),
)
class StopTrimmedAgainstTheWish(Fault):
    """`no_stop_trim` has no effect."""

    def text(self, reader: Reader, text: str) -> str:
        stops = reader.request.sampling.stop if reader.request.sampling.no_stop_trim else ()
        return text.removesuffix(next(filter(text.endswith, stops), ""))


@fault(
    "stop-cut-from-ids-only",
    "X12",
    upstream=("NVIDIA/TensorRT-LLM PR #18190", "vllm-project/vllm PR #47616"),
)
class StopCutFromIdsOnly(Fault):
    """The token that stopped the choice is cut off its ids, and not off logprobs and counters."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        stopped = emission.finish is not None and emission.finish.type == "stop"
        return replace(emission, output_ids=emission.output_ids[:-1]) if stopped else emission


@fault(
    "budget-exceeded",
    "X12",
    upstream=("sgl-project/sglang PR #7147",),
)
class BudgetExceeded(Fault):
    """One token more than max_new_tokens: prefill's own token is not counted."""

    def stop_rules(self, rules: StopRules) -> StopRules:
        rules.max_new_tokens += 1
        return rules


@fault(
    "budget-not-used-up",
    "X12",
    upstream=("NVIDIA/TensorRT-LLM issue #10824",),
)
class BudgetNotUsedUp(Fault):
    """The choice ends with length one token before its budget."""

    def stop_rules(self, rules: StopRules) -> StopRules:
        rules.max_new_tokens = max(rules.max_new_tokens - 1, min(rules.max_new_tokens, 1))
        return rules


@fault(
    "stop-set-changes-sampling",
    "X12",
    upstream=("vllm-project/vllm issue #13087",),
)
class StopSetChangesSampling(Fault):
    """A request whose stop strings are not plain ASCII takes another path, and has other tokens."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        params = body if "messages" in body else body.get("sampling_params")
        if isinstance(params, dict) and not "".join(params.get("stop") or ()).isascii():
            params["logit_bias"] = {"5": 100}
        return body


class _CapFirst(StopRules):
    """Stop rules that look at the budget before they look for a stop."""

    def __init__(self, true: StopRules) -> None:
        self.__dict__.update(true.__dict__)
        self._true = true

    def check(self, output_ids: Sequence[int]) -> FinishReason | None:
        if len(output_ids) >= self.max_new_tokens:
            return FinishReason("length", length=self.max_new_tokens)
        return self._true.check(output_ids)


@fault(
    "cap-masks-the-stop",
    "X12",
    upstream=("sgl-project/sglang issue #31599",),
)
class CapMasksTheStop(Fault):
    """A stop that is met by the last token of the budget is not seen: the finish is length."""

    def stop_rules(self, rules: StopRules) -> StopRules:
        return _CapFirst(rules)


class _FewTokens(StopRules):
    """Stop rules that seek stop strings in the text of a few tokens at the end."""

    def __init__(self, true: StopRules, decode: Callable[[Sequence[int]], str], window: int) -> None:
        self.__dict__.update(true.__dict__)
        self._true, self._decode, self._window = true, decode, window
        self._others = copy(true)
        self._others._strings = ()

    def check(self, output_ids: Sequence[int]) -> FinishReason | None:
        finish = self._true.check(output_ids)
        if finish is None or finish.matched not in self._strings:
            return finish
        seen = self._decode(output_ids[-self._window :])
        return finish if str(finish.matched) in seen else self._others.check(output_ids)


@fault(
    "stop-string-sought-in-few-tokens",
    "X12",
    upstream=("sgl-project/sglang issue #36698", "sgl-project/sglang PR #36728"),
)
class StopStringSoughtInFewTokens(Fault):
    """Stop strings are sought in as many of the last tokens as a tokenizer makes of the longest, and in one
    more: a stop that the model spells in more of them is missed.
    """

    def stop_rules(self, rules: StopRules) -> StopRules:
        if self.tokenizer is None or not rules._strings:
            return rules
        sizes = [len(self.tokenizer.encode(stop, add_special_tokens=False)) for stop in rules._strings]
        return _FewTokens(rules, self.tokenizer.decode, max(sizes) + 1)


@fault("stop-sought-in-hidden-text", "X12")
class StopSoughtInHiddenText(Fault):
    """Stop strings are sought in a text that spells special tokens out, though the answer hides them: the
    text of a hidden token ends the answer, and a stop on both sides of one is missed.
    """

    def stop_rules(self, rules: StopRules) -> StopRules:
        if self.tokenizer is not None and rules._text is not None:
            shown = spelling(self.tokenizer, skip_special_tokens=False)
            rules._text = _RunningText(Detokenizer(shown), rules._text._keep)
        return rules


class _DecodesAllAtOnce(StopRules):
    """Stop rules that take what bytes of an unfinished character are written as for text."""

    def __init__(self, true: StopRules, decode: Callable[[Sequence[int]], str]) -> None:
        self.__dict__.update(true.__dict__)
        self._true, self._decode = true, decode

    def check(self, output_ids: Sequence[int]) -> FinishReason | None:
        text = self._decode(output_ids)
        found = next((stop for stop in self._strings if stop in text), None)
        return self._true.check(output_ids) if found is None else FinishReason("stop", matched=found)


@fault("stop-found-in-an-unfinished-character", "X12")
class StopFoundInAnUnfinishedCharacter(Fault):
    """The stop string U+FFFD is found in every character that is not whole yet."""

    def stop_rules(self, rules: StopRules) -> StopRules:
        tokenizer = self.tokenizer
        if tokenizer is None or not any(HALF in stop for stop in rules._strings):
            return rules
        return _DecodesAllAtOnce(rules, lambda ids: tokenizer.decode(ids, skip_special_tokens=True))


@fault("stop-of-a-broken-character-found-late", "X16")
class StopOfABrokenCharacterFoundLate(Fault):
    """Text that ends in U+FFFD waits for the next token, and so does a stop string that does: the token
    behind it is one too many.
    """

    def stop_rules(self, rules: StopRules) -> StopRules:
        def broken(finish: FinishReason | None) -> bool:
            return finish is not None and isinstance(finish.matched, str) and finish.matched.endswith(HALF)

        def late(check: Check, ids: Sequence[int]) -> FinishReason | None:
            before, finish = check(ids[:-1]), check(ids)
            return before if broken(before) else None if broken(finish) else finish

        return _Rules(rules, late)

    def text(self, reader: Reader, text: str) -> str:
        stops = [stop for stop in reader.request.sampling.stop if stop.endswith(HALF) and stop in text]
        return text[: text.find(stops[0])] if stops else text


class _PromptToo(StopRules):
    """Stop rules that find at once what stands in a text before the output."""

    def __init__(self, true: StopRules, text: str) -> None:
        self.__dict__.update(true.__dict__)
        self._true = true
        self._found = next((stop for stop in self._strings if stop in text), None)

    def check(self, output_ids: Sequence[int]) -> FinishReason | None:
        if output_ids and self._found is not None:
            return FinishReason("stop", matched=self._found)
        return self._true.check(output_ids)


@fault(
    "stop-string-sought-in-the-prompt",
    "X12",
    upstream=("vllm-project/vllm issue #48853", "vllm-project/vllm PR #48854"),
)
class StopStringSoughtInThePrompt(Fault):
    """Where a prompt ends within a character, its text counts as output: a stop in it ends the answer."""

    def stop_rules(self, rules: StopRules) -> StopRules:
        sent = self.request.get("input_ids") or self.request.get("prompt") or ()
        prompt = sent[0] if sent and isinstance(sent[0], list) else sent
        if self.tokenizer is None or not rules._strings or not isinstance(prompt, list):
            return rules
        text = self.tokenizer.decode(prompt)
        return _PromptToo(rules, text) if text.endswith(HALF) else rules
