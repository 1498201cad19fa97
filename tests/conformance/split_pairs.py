"""Pairs for the steps around an answer: the split pipeline, batches of conversations, counts of prompts."""

from __future__ import annotations

from typing import Any

from control_calls import posted
from pair import Pair
from wire_answers import answered

from tokenwire.checks.check import Target
from tokenwire.dialects.control import ControlCall

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
SEA = [{"role": "user", "content": "Name a sea."}]
ASKED: dict[str, Any] = {
    "model": "m",
    "messages": HELLO,
    "temperature": 0.0,
    "repetition_penalty": 1.0,
    "return_token_ids": True,
    "logprobs": True,
}
PROMPT, IDS = [1, 2, 3], [11, 12]
RENDERED = {
    "token_ids": PROMPT,
    "sampling_params": {"temperature": 0.0, "logprobs": 0},
    "output_mode": "tokens",
}
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "completion_tokens_details": {"reasoning_tokens": 1},
}


def entries(*texts: str) -> dict[str, Any]:
    """The logprobs of tokens with these texts, each less likely than the one before."""
    return {
        "content": [
            {"token": text, "logprob": -0.5 * number, "bytes": list(text.encode()), "top_logprobs": []}
            for number, text in enumerate(texts, 1)
        ]
    }


def chosen(index: int = 0, ids: list[int] = IDS, **message: Any) -> dict[str, Any]:
    """A choice of a chat answer."""
    return {
        "index": index,
        "message": {"role": "assistant", "content": "Hi.", "reasoning": "Hm.", **message},
        "logprobs": entries("Hm.", "Hi."),
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": ids,
    }


def document(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A whole chat answer."""
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": list(choices or (chosen(),)),
        "usage": USAGE,
        "prompt_token_ids": PROMPT,
        **fields,
    }


WHOLE = answered("vllm-chat", ASKED, document())


def generated(
    ids: list[int] = IDS, *, logprobs: tuple[float, ...] = (-0.5, -1.0), finish: str = "stop"
) -> Any:
    """An answer to the rendered request."""
    content = [
        {"token_id": token, "logprob": logprob, "rank": 1, "top_logprobs": []}
        for token, logprob in zip(ids, logprobs, strict=False)
    ]
    choice = {
        "index": 0,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": ids,
        "logprobs": {"content": content},
    }
    return {
        "request_id": "g",
        "choices": [choice],
        "usage": {"prompt_tokens": 3, "completion_tokens": len(ids), "total_tokens": 3 + len(ids)},
        "output_mode": "tokens",
    }


def run(**differing: Any) -> Any:
    return answered("vllm-generate", RENDERED, generated(**differing), label="ids")


def rendered(ids: list[int] = PROMPT) -> Target:
    return Target(calls=(posted(f"{CHAT}/render", ASKED, {**RENDERED, "token_ids": ids}),))


def derendered(answer: Any) -> Target:
    body = {"chat_request": ASKED, "generate_response": generated(), "prompt_token_ids": PROMPT}
    return Target(calls=(posted(f"{CHAT}/derender", body, answer),))


def in_mode(**message: Any) -> Any:
    """An answer to the rendered request that holds the message."""
    answer = {**generated(), "choices": [chosen(**message)], "output_mode": "derender"}
    return answered("vllm-generate", {**RENDERED, "output_mode": "derender"}, answer, label="derender")


def event(number: int, ids: list[int], finish: str | None, **delta: Any) -> ControlCall:
    """The event with this number of a stream, with the chunk that it became."""
    choice = {"index": 0, "token_ids": ids, "finish_reason": finish}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    body = {
        "stream": True,
        "chat_request": {**ASKED, "stream": True},
        "generate_chunk": {"request_id": "g", "choices": [choice]},
        "stream_state": {"seen": number} if number else None,
    }
    answer = {
        "chunk": {**chunk, "choices": [{**choice, "delta": delta}]},
        "stream_state": {"seen": number + 1},
    }
    return posted(f"{CHAT}/derender", body, answer, seconds=number)


def bad_request(status: int, **body: Any) -> Target:
    return Target(calls=(posted(f"{CHAT}/derender", {"chat_request": ASKED, **body}, {}, status=status),))


TWO = {"generate_chunk": {"choices": [{"index": 0, "token_ids": [5]}, {"index": 1, "token_ids": [6]}]}}
NEGATIVE = {"generate_response": {"choices": [{"index": 0, "token_ids": [5, -1]}]}}


def batch(*choices: dict[str, Any]) -> Target:
    body = {**ASKED, "messages": [HELLO, SEA]}
    return Target(calls=(posted(f"{CHAT}/batch", body, document(*choices)),))


AT_SEA = chosen(1, [21, 22], content="Baltic.")
ALONE = (
    answered("vllm-chat", ASKED, document(), label="hello"),
    answered("vllm-chat", {**ASKED, "messages": SEA}, document({**AT_SEA, "index": 0}), label="sea"),
)
MESSAGES = {"model": "m", "max_tokens": 4, "messages": HELLO}
MESSAGE = answered(
    "anthropic-messages",
    MESSAGES,
    {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hi."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "cache_read_input_tokens": 2, "output_tokens": 2},
    },
)


def counted(tokens: Any) -> Target:
    body = {"model": "m", "messages": HELLO}
    return Target(calls=(posted("/v1/messages/count_tokens", body, {"input_tokens": tokens}),))


COMPLETIONS = "/v1/completions"
TEXT_ASKED: dict[str, Any] = {"model": "m", "prompt": "Hi", "temperature": 0.0, "return_token_ids": True}
TEXT_RUN = {"token_ids": PROMPT, "sampling_params": {"temperature": 0.0}, "output_mode": "tokens"}


def completed(text: str = "Hi.", **usage: int) -> dict[str, Any]:
    """A whole answer of the completions endpoint."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    return {
        "id": "c",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [{**choice, "token_ids": IDS, "prompt_token_ids": PROMPT}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, **usage},
    }


COMPLETED = answered("vllm-completions", TEXT_ASKED, completed())


def rendered_text(ids: list[int] = PROMPT) -> Target:
    return Target(calls=(posted(f"{COMPLETIONS}/render", TEXT_ASKED, [{**TEXT_RUN, "token_ids": ids}]),))


def derendered_text(answer: Any) -> Target:
    body = {"completion_request": TEXT_ASKED, "generate_responses": [generated()]}
    return Target(calls=(posted(f"{COMPLETIONS}/derender", body, answer),))


def run_text(**differing: Any) -> Any:
    return answered("vllm-generate", TEXT_RUN, generated(**differing), label="ids")


SPLIT_PAIRS = [
    Pair(
        "rendered-ids-are-run",
        (COMPLETED,),
        (COMPLETED,),
        pointer="/choices/0/prompt_token_ids",
        target=rendered_text(),
        bad_target=rendered_text(PROMPT[:-1]),
        why="of completions",
    ),
    Pair(
        "rendered-request-answers-alike",
        (COMPLETED, run_text()),
        (COMPLETED, run_text(ids=[11, 13])),
        pointer="/choices/0/token_ids",
        target=rendered_text(),
        why="of completions",
    ),
    Pair(
        "derendered-message-is-the-chats",
        (COMPLETED,),
        (COMPLETED,),
        target=derendered_text(completed()),
        bad_target=derendered_text(completed("Hi")),
        why="of completions",
    ),
    Pair(
        "derendered-counts-are-the-chats",
        (COMPLETED,),
        (COMPLETED,),
        target=derendered_text(completed()),
        bad_target=derendered_text(completed(completion_tokens=1)),
        why="of completions",
    ),
    Pair(
        "rendered-ids-are-run",
        (WHOLE,),
        (WHOLE,),
        pointer="/prompt_token_ids",
        target=rendered(),
        bad_target=rendered(PROMPT[:-1]),
    ),
    Pair(
        "rendered-request-answers-alike",
        (WHOLE, run()),
        (WHOLE, run(ids=[11, 19])),
        pointer="/choices/0/token_ids",
        target=rendered(),
        why="another id",
    ),
    Pair(
        "rendered-request-answers-alike",
        (WHOLE, run()),
        (WHOLE, run(finish="length")),
        pointer="/choices/0/finish_reason",
        target=rendered(),
        why="another finish",
    ),
    Pair(
        "rendered-request-answers-alike",
        (WHOLE, run()),
        (WHOLE, run(logprobs=(-0.5, -2.0))),
        target=rendered(),
        why="another logprob",
    ),
    *(
        Pair(
            "derendered-message-is-the-chats",
            (WHOLE,),
            (WHOLE,),
            target=derendered(document()),
            bad_target=derendered(document({**chosen(), **other})),
            why=why,
        )
        for why, other in {
            "no reasoning": chosen(reasoning=None),
            "other content": chosen(content="Hi"),
            "a call": chosen(
                tool_calls=[{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
            ),
            "another finish": {"finish_reason": "tool_calls"},
        }.items()
    ),
    Pair(
        "derendered-message-is-the-chats",
        (WHOLE, in_mode()),
        (WHOLE, in_mode(content="Hi")),
        target=rendered(),
        why="in the answer to the ids",
    ),
    Pair(
        "derendered-logprobs-are-the-chats",
        (WHOLE,),
        (WHOLE,),
        target=derendered(document()),
        bad_target=derendered(document({**chosen(), "logprobs": entries("Hi.", "Hm.")})),
        pointer="/choices/0/logprobs/content",
    ),
    Pair(
        "derendered-counts-are-the-chats",
        (WHOLE,),
        (WHOLE,),
        target=derendered(document()),
        bad_target=derendered(document(usage={**USAGE, "completion_tokens": 1})),
    ),
    Pair(
        "derendered-deltas-add-up",
        (WHOLE,),
        (WHOLE,),
        target=Target(
            calls=(
                event(0, IDS[:1], None, role="assistant", reasoning="Hm."),
                event(1, IDS[1:], "stop", content="Hi."),
            )
        ),
        bad_target=Target(
            calls=(
                event(0, IDS[:1], None, role="assistant", reasoning="Hm."),
                event(1, IDS[1:], "stop", content=""),
            )
        ),
    ),
    *(
        Pair(
            "impossible-derender-refused",
            (WHOLE,),
            (WHOLE,),
            target=bad_request(400, **body),
            bad_target=bad_request(status, **body),
            why=why,
        )
        for why, status, body in (
            ("two choices", 200, TWO),
            ("a negative id", 200, NEGATIVE),
            ("a negative id breaks the server", 500, NEGATIVE),
            ("no answer", 200, {}),
        )
    ),
    Pair(
        "conversations-of-a-batch-stand-alone",
        ALONE,
        ALONE,
        target=batch(chosen(), AT_SEA),
        bad_target=batch({**AT_SEA, "index": 0}, chosen(1)),
        pointer="/choices/0/token_ids",
        why="in another order",
    ),
    Pair(
        "conversations-of-a-batch-stand-alone",
        ALONE,
        ALONE,
        target=batch(chosen(), AT_SEA),
        bad_target=batch(chosen()),
        why="one is missing",
    ),
    Pair(
        "counted-tokens-are-the-prompts",
        (MESSAGE,),
        (MESSAGE,),
        target=counted(9),
        bad_target=counted(7),
    ),
]
