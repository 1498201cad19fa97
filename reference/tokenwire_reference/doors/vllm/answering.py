"""The common part of the answers of vLLM's three endpoints."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenwire_reference import __version__
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.openai_answer import OpenAIAnswer
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.served import Served
from tokenwire_reference.doors.usage import Consumed
from tokenwire_reference.doors.vllm.call import VllmCall
from tokenwire_reference.doors.vllm.logprob_shapes import LogprobWriter

FINGERPRINT = {"system_fingerprint": f"tokenwire-reference-{__version__}"}


class VllmAnswer(OpenAIAnswer[VllmCall]):
    """Formats one answer in vLLM's shapes, with the usage after all chunks."""

    last_fields: Mapping[str, Any] = FINGERPRINT
    """Fields of the last chunk of a stream."""

    def __init__(self, call: VllmCall, served: Served) -> None:
        super().__init__(call, served)
        self.logprobs = LogprobWriter(call.logprobs, call.tokenizer)
        self._ended = 0

    def reasoning_tokens(self) -> int | None:
        """Return the reasoning tokens of all choices at the end; None if reasoning is not parsed."""
        return None

    def usage(self, choices: Sequence[Emission]) -> dict[str, Any]:
        """Return the usage of a whole answer."""
        consumed = Consumed.by(choices, self.call.n, self.reasoning_tokens())
        counts = consumed.with_cache(cache_report=self.served.args.enable_cache_report)
        return {**counts, "completion_tokens_details": consumed.details}

    def metrics(self, choices: Sequence[Emission]) -> dict[str, Any] | None:
        """Return the counts of drafts at the end of an answer with a single choice.

        None without drafts, and for several choices, which the fields cannot tell apart.
        """
        if len(self.call.requests) != 1 or not choices:
            return None
        drafts = choices[0].record.drafts
        if drafts is None or not drafts.proposed:
            return None
        steps, right, counts = len(drafts.right), sum(drafts.right), Counter(drafts.right)
        most = self.served.args.speculative_num_draft_tokens
        return {
            "speculative_decoding": {
                "mean_acceptance_length": 1 + right / steps,
                "draft_acceptance_rate": right / drafts.proposed,
                "acceptance_histogram": [counts[number] for number in range(most + 1)],
                "num_spec_steps": steps,
                "num_accepted_draft_tokens": right,
                "num_draft_tokens": drafts.proposed,
                "num_spec_tokens": most,
            }
        }

    def weight_versions(self, emission: Emission) -> dict[str, Any]:
        """Return the spans of weight versions as a field of a choice: null before its end, empty unless
        requested.
        """
        if not self.call.body.get("return_weight_versions"):
            return {}
        return {"weight_versions": emission.weight_versions if emission.finish else None}

    def token_ids(self, emission: Emission) -> Sequence[int] | None:
        return emission.output_ids if self.call.body.get("return_token_ids") else None

    def prompt_token_ids(self, emission: Emission) -> Sequence[int] | None:
        return emission.record.prompt_token_ids if self.call.body.get("return_token_ids") else None

    def failed(self, refusal: RefusalError) -> dict[str, Any]:
        return refusal.nested()

    @abstractmethod
    def chunks_of(self, emission: Emission) -> Sequence[dict[str, Any]]:
        """Return the chunks of an emission, at least one."""

    def chunks(self, emission: Emission) -> Iterator[dict[str, Any]]:
        self._ended += emission.finish is not None
        *earlier, latest = self.chunks_of(emission)
        yield from earlier
        is_last = self._ended == len(self.call.requests) and not self.call.include_usage
        yield {**latest, **self.last_fields} if is_last else latest

    def closing(self) -> Iterator[dict[str, Any]]:
        if self.call.include_usage:
            consumed = Consumed.by(self.finals, self.call.n, self.reasoning_tokens())
            details = {} if consumed.details is None else {"completion_tokens_details": consumed.details}
            metrics = self.metrics(self.finals)
            more = {} if metrics is None else {"metrics": metrics}
            yield {**self.chunk([], usage={**consumed.totals, **details}, **more), **self.last_fields}
