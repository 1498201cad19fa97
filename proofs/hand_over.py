"""Check the hand-over of requests between two front ends: one engine prefills, and the other one decodes.

The first front end is asked for one token. Its answer must contain the data for the hand-over
(`kv_transfer_params`). The second front end gets a request with this data, whole and streamed. Its answers
must be right. Its engine must have received the cached prompt, which it then reports as cached.

    python -m proofs.hand_over 'vllm-rs serve' 'vllm serve'
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from proofs.schedules import TOKENS, FrontEnd, ScheduledRequest, found_at, judged, written
from tokenwire.asking.recorder import Recorder
from tokenwire.record import Stream
from tokenwire_engine.launch import Family, Wanted, front_end
from tokenwire_engine.schedule import Schedule

PEER = "prefill-1"
COUNTED = "--enable-prompt-tokens-details"
"""The flag that makes a vLLM front end report cached tokens."""
_FIELD = "kv_transfer_params"


async def _asked(at: FrontEnd, case: ScheduledRequest, **members: Any) -> tuple[bytes, Stream]:
    """Send a request with further members in its body. Return the bytes of the answer, and the
    parsed answer.
    """
    request = at.request(case, written(case.schedule))
    name = f"hand-over/{next(at.numbers)}"
    sent = replace(request, body={**request.body, **members})
    exchange = await at.recorder.send(name, "hand-over", sent)
    # The answer is parsed as if the request lacked these members, because dialects do not know them.
    return b"".join(read.data for read in exchange.reads), at.dialect.read(replace(exchange, request=request))


async def prefill(url: str) -> Any:
    """Return the hand-over data in the answer to a prefill request. None if the answer has none."""
    at = await found_at(Recorder(url))
    case = ScheduledRequest("plain", Schedule(kv=PEER), TOKENS, stream=False)
    body, _ = await _asked(at, case, max_tokens=1, **{_FIELD: {"do_remote_decode": True}})
    return json.loads(body).get(_FIELD)


async def decode(url: str, handed_over: Mapping[str, Any]) -> list[str]:
    """Return the errors in the answers to a request that another engine prefilled."""
    at = await found_at(Recorder(url))
    wrong = []
    for form, stream in (("whole", False), ("streamed", True)):
        case = ScheduledRequest("plain", Schedule(steps=(2, 1)), TOKENS, stream)
        _, answer = await _asked(at, case, **{_FIELD: handed_over})
        wrong += [f"{form}: {name}: {message}" for name, message in judged(answer, at.target)]
        wrong += [f"{form}: {message}" for message in uncounted(answer)]
    return wrong


def uncounted(answer: Stream) -> Iterator[str]:
    """Yield an error if an answer does not report its prompt, except the last token, as cached."""
    counts = answer.usage or {}
    cached, prompt = (
        (counts.get("prompt_tokens_details") or {}).get("cached_tokens"),
        counts.get("prompt_tokens"),
    )
    if prompt is None or cached != prompt - 1:
        yield f"{cached} of {prompt} prompt tokens are cached: the engine received nothing from {PEER}"


def wanted(command: str) -> Wanted:
    """Return a front end that reports cached tokens. Raises SystemExit if the command does not start vLLM."""
    if "sglang" in command:
        raise SystemExit(
            "SGLang's front ends hand nothing over: their engines do, over a network of their own"
        )
    return Wanted(Family.VLLM, (*shlex.split(command), COUNTED))


def main() -> int:
    """Print the hand-over data and the errors. Return 1 if there are errors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("prefill", help="the command that starts the front end of the prefill")
    parser.add_argument("decode", help="that of the decode")
    options = parser.parse_args()
    with front_end(wanted(options.prefill)) as first, front_end(wanted(options.decode)) as second:
        handed_over = asyncio.run(prefill(first.url))
        print(f"handed over: {handed_over}")
        if not isinstance(handed_over, dict):
            print(f"the answer to the prefill has no {_FIELD}")
            return 1
        wrong = asyncio.run(decode(second.url, handed_over))
    print("\n".join(wrong) or "both answers are right, and their prompts are cached")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
