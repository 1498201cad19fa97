"""The common part of calls of OpenAI's endpoints, in SGLang's dialect and in vLLM's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tokenwire_reference.core.request import Request, SamplingParams
from tokenwire_reference.core.tokenizer import Tokenizer
from tokenwire_reference.doors.adapters import adapter_of
from tokenwire_reference.doors.limits import refuse_many_samples
from tokenwire_reference.doors.sampling_fields import with_own_seed
from tokenwire_reference.doors.served import Served


@dataclass(frozen=True, kw_only=True)
class OpenAICall:
    """One call, ready for the engine. Requests are ordered by prompt, `n` samples each."""

    id: str
    body: Mapping[str, Any]
    model: str
    tokenizer: Tokenizer | None
    requests: Sequence[Request]
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool

    @classmethod
    def read(
        cls,
        body: Mapping[str, Any],
        served: Served,
        *,
        id: str,  # noqa: A002
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams,
        wanted: Mapping[str, Any],
        is_batch: bool = False,
        **fields: Any,
    ) -> Self:
        """Build a call. `wanted` are the outputs that each prompt requests; `fields` are additional fields of
        the class.

        If a call has only one request and is not a batch, the request has the id of the call. Raises
        RefusalError for too many samples.
        """
        n, stream = sampling.n, bool(body.get("stream"))
        refuse_many_samples(prompts, n)
        adapter = adapter_of(body, served)
        single = not is_batch and n * len(prompts) == 1
        options = body.get("stream_options") or {}
        return cls(
            id=id,
            body=body,
            model=body.get("model") or served.args.model_name,
            tokenizer=served.tokenizer,
            requests=[
                Request(
                    rid=id if single else f"{id}_{i * n + j}",
                    prompt_token_ids=prompt,
                    sampling=with_own_seed(sampling, j),
                    stream=stream,
                    adapter=adapter,
                    **wanted,
                )
                for i, prompt in enumerate(map(tuple, prompts))
                for j in range(n)
            ],
            n=n,
            stream=stream,
            include_usage=bool(options.get("include_usage"))
            or served.args.stream_response_default_include_usage,
            continuous_usage=bool(options.get("continuous_usage_stats")),
            **fields,
        )
