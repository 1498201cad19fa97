"""Two answers that differ in one thing, for logprobs, prompts, echoes and ids that come back."""

from __future__ import annotations

import base64
import itertools
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from letter_tokenizer import LetterTokenizer
from pair import Pair
from stream_builder import (
    IDS,
    PROMPT,
    TEXT,
    Reply,
    change,
    incremental,
    logprobs,
    named,
    refusal,
    top_logprobs,
    whole,
)
from wire_answers import answered

from tokenwire.checks.check import Target
from tokenwire.record import Finish, Stream
from tokenwire.target.determinism import Comparison

CHAT = "openai-chat"
COMPLETIONS = "vllm-completions"
LETTERS = Target(tokenizer=LetterTokenizer())
USAGE = {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
EIGHT = tuple(range(20, 28))


def content(text: str = TEXT) -> list[dict[str, Any]]:
    """Chat's entries for a text, one token for each character."""
    return [
        {"token": item, "logprob": -0.5 - place, "bytes": list(item.encode()), "top_logprobs": []}
        for place, item in enumerate(text)
    ]


def chat(entries: Any, *, text: str = TEXT, stop: bool = False, **asked: Any) -> Stream:
    """A whole chat answer with these logprobs, and a usage of six tokens."""
    found = {"content": entries} if isinstance(entries, list) else entries
    reply = Reply(
        ids=None,
        text=text,
        counted=False,
        counters={},
        details={"request_id": "c-1", "role": "assistant", "content": text, "logprobs": found},
        finish=Finish("stop" if stop else "length"),
    )
    options: dict[str, Any] = {"dialect": CHAT, "logprobs": True, "usage": USAGE, "input_ids": None}
    stream = whole(reply, **options | asked)
    return change(stream, series={"logprobs_content": entries}) if isinstance(entries, list) else stream


def lists(ids: Sequence[int] = IDS, **changed: Any) -> dict[str, Any]:
    """The logprobs object of a completion, one letter for each token."""
    names = [chr(97 + place) for place in range(len(ids))]
    found = {
        "tokens": names,
        "token_logprobs": [-0.5 - place for place in range(len(ids))],
        "top_logprobs": [{name: -0.5 - place} for place, name in enumerate(names)],
        "text_offset": list(range(len(ids))),
    }
    return {**found, **changed}


def completion(event: dict[str, Any], **asked: Any) -> Stream:
    reply = Reply(details={"request_id": "c-1", "logprobs": event})
    options: dict[str, Any] = {"dialect": COMPLETIONS, "logprobs": True, "top_logprobs": 1}
    return whole(reply, **options | asked)


def prompt_entries(ids: Sequence[int], *, null_at: int = 0, shift: float = 0.0) -> list[list[Any]]:
    """Prompt logprobs: each position has its own, whatever the start."""
    return [
        [None if place == null_at else -1.0 - place - shift, token, None] for place, token in enumerate(ids)
    ]


def scored(
    ids: Sequence[int] = (1, 2, 3, 4, 5), *, start: int = 0, shift: float = 0.0, null_at: int | None = None
) -> Stream:
    entries = prompt_entries(ids, null_at=start, shift=shift)[start:]
    if null_at is not None:
        entries[null_at - start][0] = None
    reply = Reply(ids=IDS[:1], text="a", prompt_series={"input_token_logprobs": entries})
    stream = whole(
        reply, input_ids=(tuple(ids),), logprobs=True, logprob_start=start, prompt_key=str(list(ids))
    )
    return named(stream, f"generate/from-{start}")


PROMPT_TOP: dict[str, Any] = {
    "input_token_logprobs": prompt_entries(PROMPT),
    "input_top_logprobs": [None, [[-1.0, 8, None], [-2.0, 2, None]], [[-1.0, 8, None], [-2.0, 9, None]]],
}
SHIFTED_TOP = {
    **PROMPT_TOP,
    "input_top_logprobs": [None, [[-1.0, 8, None], [-2.5, 2, None]], [[-1, 8], [-2, 9]]],
}
ASKED_TOP: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "logprob_start": 0}


def told_in_stream(entries: list[list[Any]]) -> Comparison:
    """A whole answer with the logprobs of its prompt, and a stream that has these in its last event."""
    reply = Reply(prompt_series={"input_token_logprobs": prompt_entries(PROMPT)})
    stream = incremental(reply, logprobs=True, logprob_start=0)
    last = change(stream, prompt_series={"input_token_logprobs": entries})
    return Comparison(named(whole(reply, logprobs=True, logprob_start=0), "generate/whole"), last)


SAMPLED = named(
    whole(Reply(series={"output_token_logprobs": logprobs()}), logprobs=True, prompt_key="p"),
    "generate/sampled",
)


def sent_back(shift: float = 0.0) -> tuple[Stream, ...]:
    """An answer, and its ids scored as part of a prompt."""
    ids = (*PROMPT, *IDS)
    entries = [[None, 1, None], [-1.0, 2, None], [-2.0, 3, None]]
    entries += [[logprob - shift, token, None] for logprob, token, _ in logprobs()]
    reply = Reply(ids=(7,), text="z", prompt_series={"input_token_logprobs": entries})
    back = whole(reply, input_ids=(ids,), logprobs=True, logprob_start=0, prompt_key="q")
    return (SAMPLED, named(back, "generate/scored"))


def long_sent_back(off_at: int, prompt: tuple[int, ...] = PROMPT) -> tuple[Stream, ...]:
    """An answer of sixteen ids with one logprob that scoring does not confirm, and its ids scored."""
    ids = tuple(range(20, 36))
    found = [[-1.0 - 3.0 * (place == off_at), token, None] for place, token in enumerate(ids)]
    series = {"output_token_logprobs": found}
    first = whole(Reply(ids=ids, text="x" * 16, series=series), input_ids=(prompt,), logprobs=True)
    entries = [[None, prompt[0], None], *([-1.0, token, None] for token in (*prompt[1:], *ids))]
    back = whole(
        Reply(ids=(7,), text="z", prompt_series={"input_token_logprobs": entries}),
        input_ids=((*prompt, *ids),),
        logprobs=True,
        logprob_start=0,
    )
    name = "-".join(map(str, prompt))
    return (named(first, f"generate/sampled-{name}"), named(back, f"generate/scored-{name}"))


def warm(scale: float, name: str = "generate/warm") -> Stream:
    """An answer at temperature 0.5 whose alternatives lie so many times as far apart as the model's."""
    rows = [[[item[0] * scale, *item[1:]] for item in row] for row in top_logprobs()]
    chosen = [[row[0][0], *row[0][1:]] for row in rows]
    series = {"output_token_logprobs": chosen, "output_top_logprobs": rows}
    options: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "prompt_key": "p"}
    return named(whole(Reply(series=series), greedy=False, temperature=0.5, **options), name)


def truncated(shift: float, name: str = "generate/truncated", **left: float) -> Stream:
    """An answer at temperature 1 with top_k 1 of 2, or what else leaves that one, whose logprobs lie so much
    higher than the model's.
    """
    chosen = [[row[0][0] + shift, *row[0][1:]] for row in top_logprobs()]
    series = {
        "output_token_logprobs": chosen,
        "output_top_logprobs": [[entry, [-40.0, 90, None]] for entry in chosen],
    }
    options: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "prompt_key": "p"}
    options |= left or {"top_k": 1}
    return named(whole(Reply(series=series), greedy=False, temperature=1.0, **options), name)


def biased(shift: float, name: str = "generate/biased", *, chosen: int = 1) -> Stream:
    """An answer to a bias of 10 on the second id of the first position, whose logprob lies so much
    higher than the model's, beside the other. `chosen`: the one that was sampled.
    """
    rows = [[[first[0] - 9.5, *first[1:]], [second[0] - 9.5 + shift, *second[1:]]] for first, second in _TOPS]
    rows = rows if shift else _TOPS
    sampled = [rows[0][chosen], *(row[0] for row in rows[1:])]
    series = {"output_token_logprobs": sampled, "output_top_logprobs": rows}
    options: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "prompt_key": "p", "greedy": True}
    bias = {_TOPS[0][1][1]: 10.0}
    return named(whole(Reply(series=series), logit_bias=bias, other_sampling="bias", **options), name)


def penalised(shift: float, penalty: float = 1.0) -> Stream:
    """An answer whose one id comes twice, the second time so much less likely, beside another id."""
    rows = [[[-0.5 - less, 11, None], [-9.5, 90, None]] for less in (0.0, shift)]
    series = {"output_token_logprobs": [row[0] for row in rows], "output_top_logprobs": rows}
    options: dict[str, Any] = {
        "logprobs": True,
        "top_logprobs": 2,
        "prompt_key": "q",
        "logit_bias": {11: 12.0},
    }
    reply = Reply(ids=(11, 11), text="aa", series=series)
    answer = whole(reply, frequency_penalty=penalty, other_sampling=f"bias {penalty}", **options)
    return named(answer, f"generate/penalised-{shift}-{penalty}")


_TOPS = top_logprobs()
GREEDY = named(
    whole(
        Reply(series={"output_token_logprobs": logprobs(), "output_top_logprobs": top_logprobs()}),
        logprobs=True,
        top_logprobs=2,
        prompt_key="p",
    ),
    "generate/greedy",
)
PROMPT_KEY = json.dumps([None, {"text": "Say "}])


def echoed(text: str, *, echo: bool = True, name: str = "completions/echo") -> Stream:
    asked: dict[str, Any] = {"input_ids": None, "texts": ("Say ",), "prompt_key": PROMPT_KEY, "echo": echo}
    return named(change(whole(dialect=COMPLETIONS, **asked), text=text), name)


PLAIN = echoed(TEXT, echo=False, name="completions/plain")
ECHO_LISTS = lists((*PROMPT, *IDS))


def with_echo(event: dict[str, Any]) -> Stream:
    return completion(event, echo=True)


def from_text(head: Sequence[int], rest: Sequence[int], words: str) -> Stream:
    """An answer to a text, with the ids that the text became."""
    ids = (*head, *rest)
    reply = Reply(prompt_ids=ids, counters={"prompt_tokens": len(ids)})
    key = json.dumps([None, {"text": words}])
    asked: dict[str, Any] = {"input_ids": None, "text_prompt": True, "return_prompt_token_ids": True}
    return named(whole(reply, prompt_key=key, **asked), f"generate/{words}")


def conversation(content: str | None, *ids: int) -> Stream:
    """An answer to messages of which one has this content, with the ids that they became."""
    reply = Reply(prompt_ids=ids, counters={"prompt_tokens": len(ids)})
    key = json.dumps([None, {"messages": [{"role": "assistant", "content": content}]}])
    asked: dict[str, Any] = {"input_ids": None, "text_prompt": True, "return_prompt_token_ids": True}
    return named(whole(reply, dialect=CHAT, prompt_key=key, **asked), f"chat/{content}")


LATE = change(incremental(Reply(), return_prompt_token_ids=True), prompt_token_ids=list(PROMPT))
TURN = (*PROMPT, *IDS)


def next_turn(ids: Sequence[int]) -> tuple[Stream, ...]:
    """A turn, and the next one, which says that these were its prompt ids."""
    second = whole(Reply(prompt_ids=ids), input_ids=((*TURN, 9),), return_prompt_token_ids=True)
    return (named(whole(), "generate/first"), named(second, "generate/second"))


def with_media(ran: Sequence[int]) -> tuple[Stream, ...]:
    """A text alone, with an image, and the ids that the two became beside the same image, as they ran."""
    alone, seeing = from_text((1,), (2,), "look"), from_text((1, 50), (2,), "look")
    image: dict[str, Any] = {"media": True, "other_sampling": '{"image_data":"x"}'}
    seeing = replace(seeing, asked=replace(seeing.asked, **image))
    back = whole(Reply(prompt_ids=ran), input_ids=((1, 50, 2),), return_prompt_token_ids=True, **image)
    return (alone, named(seeing, "generate/seeing"), named(back, "generate/back"))


VARYING = Reply(ids=EIGHT, text="abcdefgh", series={"output_token_logprobs": logprobs(EIGHT)})
CONSTANT = replace(VARYING, series={"output_token_logprobs": [[-1.5, token, None] for token in EIGHT]})
TOP_WRITTEN_TWICE = [{**content()[0], "top_logprobs": [{"token": "a"}]}, *content()[1:]]


def with_alternative(token: str, data: list[int]) -> list[dict[str, Any]]:
    """Chat's entries, each with its token and another one as the likeliest."""
    return [
        {
            **entry,
            "top_logprobs": [
                {name: entry[name] for name in ("token", "logprob", "bytes")},
                {"token": token, "logprob": -9.0, "bytes": data},
            ],
        }
        for entry in content()
    ]


def ranked(sampled: int, *others: int, number: float = -1.8, again: Sequence[float] = ()) -> Stream:
    """An answer of one id that is the third of its position, and of the two that are likelier.

    again: the logprobs of further entries for the sampled id.
    """
    entries = [{"token_id": 7, "logprob": number, "rank": sampled}]
    entries += [{"token_id": 8 + n, "logprob": -1.0 - n / 2, "rank": rank} for n, rank in enumerate(others)]
    entries += [{"token_id": 7, "logprob": value, "rank": 1} for value in again]
    entry = {**entries[0], "top_logprobs": entries[1:]}
    choice = {"index": 0, "token_ids": [7], "finish_reason": "length", "logprobs": {"content": [entry]}}
    params = {"max_tokens": 1, "logprobs": 2, "temperature": 1.0, "seed": 3}
    body = {"token_ids": [5], "sampling_params": params}
    return answered("vllm-generate", body, {"request_id": "generate-tokens-r", "choices": [choice]})


def chosen_with_ranks(*ranks: int | None) -> Stream:
    """An answer of one sampled id of rank 1, and of the two ids that the request chose in place of others."""
    numbers = {7: -0.5, 50: -19.8, 51: -6.9}
    listed = [
        {"token_id": token, "logprob": number, "rank": rank}
        for (token, number), rank in zip(numbers.items(), (1, *ranks), strict=True)
    ]
    choice = {"index": 0, "token_ids": [7], "finish_reason": "length"}
    choice |= {"logprobs": {"content": [{**listed[0], "top_logprobs": listed}]}}
    params = {"max_tokens": 1, "temperature": 0.0, "logprobs": 2, "logprob_token_ids": [50, 51]}
    document = {"request_id": "generate-tokens-r", "choices": [choice]}
    return answered("vllm-generate", {"token_ids": [5], "sampling_params": params}, document)


def placeholder(number: float = -9999.0) -> Stream:
    """An answer of one sampled id that has no logprob, no rank and no candidates."""
    entry = {"token_id": 7, "logprob": number, "rank": None, "top_logprobs": []}
    choice = {"index": 0, "token_ids": [7], "finish_reason": "length", "logprobs": {"content": [entry]}}
    body = {
        "token_ids": [5],
        "sampling_params": {"max_tokens": 1, "logprobs": 0, "temperature": 1.0, "seed": 3},
    }
    return answered("vllm-generate", body, {"request_id": "generate-tokens-r", "choices": [choice]})


def ranked_prompt(first: int, second: int) -> Stream:
    """An answer with the ranks of two candidates of a prompt position."""
    entries = {"6": (-2.0, first), "9": (-0.5, second)}
    position = {
        token: {"logprob": number, "rank": rank, "decoded_token": "a"}
        for token, (number, rank) in entries.items()
    }
    choice = {"index": 0, "text": "a", "finish_reason": "length", "prompt_logprobs": [None, position]}
    document = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    return answered("vllm-completions", {"prompt": [5, 6], "max_tokens": 1, "prompt_logprobs": 1}, document)


def along_prompt(*positions: Any, start: int = 0) -> Stream:
    """An answer with the logprobs of the ids 40 and 11 at positions of a prompt of three ids, as lists."""
    reply = Reply(
        ids=IDS[:1],
        text="a",
        prompt_series={
            "input_token_logprobs": prompt_entries(PROMPT)[start:],
            "input_top_logprobs": [None, [[-1.0, 40, None]], [[-0.5, 11, None]]][start:],
            "input_token_ids_logprobs": positions,
        },
    )
    return whole(reply, logprobs=True, logprob_start=start, top_logprobs=1, chosen_ids=(40, 11))


FIRST_CHOSEN = [[-1.0, 40, None], [-2.0, 11, None]]
SECOND_CHOSEN = [[-3.0, 40, None], [-0.5, 11, None]]


def as_file(*rows: Sequence[float], start: int | None = None, name: Any = None) -> Stream:
    """An answer with the logprobs of ids that a request chose for each position of a prompt of three ids, as
    numbers in base64. The prompt logprobs have 40 at the first position and 11 at the second.
    """
    header = (
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({len(rows)}, {len(rows[0])}), }}\n".encode()
    )
    numbers = struct.pack(f"<{sum(map(len, rows))}f", *itertools.chain(*rows))
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + numbers
    likeliest = [("40", -1.0), ("11", -0.5)]
    positions = [{token: {"logprob": value, "rank": 1}} for token, value in likeliest]
    chosen = [[40, 11], [11]][start or 0 :]
    params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 1, "prompt_logprob_token_ids": chosen}
    body = {
        "token_ids": [1, 2, 3],
        "sampling_params": {**params, **({"prompt_logprob_start": start} if start else {})},
    }
    document = {
        "request_id": "generate-tokens-r",
        "prompt_logprobs": [None, *positions],
        "prompt_token_id_logprobs": name or base64.b64encode(data).decode(),
        "choices": [{"index": 0, "token_ids": [7], "finish_reason": "length"}],
    }
    return answered("vllm-generate", body, document)


NONE = -math.inf
ALONG = along_prompt(None, FIRST_CHOSEN, SECOND_CHOSEN)
IN_FILE = as_file((-1.0, -2.0), (-0.5, NONE))
LISTED_AT, FILE_AT = "/input_token_ids_logprobs", "/prompt_token_id_logprobs"


def chosen_in_top(*listed: int, sampled: int = 7) -> Stream:
    """An answer with one id, to a request that chose the ids 40 and 11. The sampled id is listed first."""
    entries = [{"token": f"t{token}", "logprob": -1.0} for token in (sampled, *listed)]
    row = {**entries[0], "top_logprobs": entries}
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "token_ids": [sampled]}
    choice |= {"logprobs": {"content": [row]}, "finish_reason": "length"}
    body = {"messages": [{"role": "user", "content": "?"}], "logprobs": True, "logprob_token_ids": [40, 11]}
    return answered("vllm-chat", body, {"id": "a", "choices": [choice]})


LOGPROB_PAIRS = [
    Pair(
        "rank-is-the-rank",
        ranked(3, 1, 2),
        ranked(1, 1, 2),
        pointer="/choices/0/logprobs/content",
        why="of the output",
    ),
    Pair(
        "sampled-ids-have-logprobs", placeholder(-80.5), placeholder(), pointer="/choices/0/logprobs/content"
    ),
    Pair("rank-is-the-rank", ranked_prompt(4, 1), ranked_prompt(1, 2), pointer="/choices/0/prompt_logprobs"),
    *(
        Pair(
            "rank-is-the-rank",
            right,
            chosen_with_ranks(1, 2),
            pointer="/choices/0/logprobs/content",
            why=f"the places of chosen ids instead of {why}",
        )
        for right, why in (
            (chosen_with_ranks(None, None), "none"),
            (chosen_with_ranks(700, 90), "their ranks"),
        )
    ),
    *(
        Pair("prompt-chosen-logprobs-are-the-asked-ids", right, wrong, pointer=pointer, why=why)
        for right, wrong, pointer, why in (
            (ALONG, along_prompt(None, FIRST_CHOSEN), LISTED_AT, "the last position is missing"),
            (ALONG, along_prompt(None, FIRST_CHOSEN, SECOND_CHOSEN[::-1]), LISTED_AT, "another order"),
            (ALONG, along_prompt(None, None, SECOND_CHOSEN), LISTED_AT, "null at the second position"),
            (along_prompt(SECOND_CHOSEN, start=2), along_prompt(start=2), LISTED_AT, "an empty series"),
            (IN_FILE, as_file((-1.0, -2.0)), FILE_AT, "a row is missing"),
            (IN_FILE, as_file((-1.0,), (-0.5,)), FILE_AT, "a column is missing"),
            (IN_FILE, as_file((-1.0, -2.0), (-0.5, -1.0)), FILE_AT, "a number for padding"),
            (IN_FILE, as_file((-1.0, 0.5), (-0.5, NONE)), FILE_AT, "a number above 0"),
            (IN_FILE, as_file((-1.0, -2.0), (-0.5, NONE), name="AAAA"), FILE_AT, "not a file"),
            (as_file((-0.5,), start=1), as_file((-0.5,), (-0.5,), start=1), FILE_AT, "a row too many"),
        )
    ),
    Pair(
        "prompt-chosen-logprobs-agree",
        ALONG,
        along_prompt(None, FIRST_CHOSEN, FIRST_CHOSEN),
        pointer=LISTED_AT,
        why="lists",
    ),
    Pair(
        "prompt-chosen-logprobs-agree",
        IN_FILE,
        as_file((-1.0, -2.0), (-1.0, NONE)),
        pointer=FILE_AT,
        why="a file",
    ),
    Pair(
        "logprobs-vary",
        (whole(VARYING, logprobs=True),),
        (whole(CONSTANT, logprobs=True),),
        pointer="/output_token_logprobs",
    ),
    Pair(
        "logprobs-follow-one-rule",
        (GREEDY, warm(2.0), warm(2.0, "generate/again")),
        (GREEDY, warm(2.0), warm(1.0, "generate/again")),
        pointer="/output_top_logprobs",
    ),
    Pair(
        "logprobs-follow-one-rule",
        (GREEDY, warm(1.0)),
        (GREEDY, warm(0.5)),
        pointer="/output_top_logprobs",
        why="multiplied by the temperature",
    ),
    Pair(
        "logprobs-follow-one-truncation",
        (GREEDY, truncated(0.5), truncated(0.5, "generate/again")),
        (GREEDY, truncated(0.5), truncated(0.0, "generate/again")),
        pointer="/output_top_logprobs",
    ),
    Pair(
        "logprobs-follow-one-truncation",
        (GREEDY, truncated(0.0)),
        (GREEDY, truncated(0.25)),
        pointer="/output_top_logprobs",
        why="neither of all ids nor of those that are left",
    ),
    Pair(
        "logprobs-follow-one-truncation",
        (GREEDY, truncated(0.0, min_p=1.0)),
        (GREEDY, truncated(0.25, min_p=1.0)),
        pointer="/output_top_logprobs",
        why="min_p leaves what is exactly as likely as it wants",
    ),
    Pair(
        "logprobs-follow-one-bias-rule",
        (GREEDY, biased(10.0), biased(10.0, "generate/again")),
        (GREEDY, biased(10.0), biased(0.0, "generate/again")),
        pointer="/output_top_logprobs",
    ),
    Pair(
        "logprobs-follow-one-bias-rule",
        (penalised(0.0, 0.0), penalised(1.0)),
        (penalised(0.0, 0.0), penalised(0.5)),
        pointer="/output_top_logprobs",
        why="half of the penalty",
    ),
    Pair(
        "logprobs-follow-one-bias-rule",
        (GREEDY, biased(0.0)),
        (GREEDY, biased(5.0)),
        pointer="/output_top_logprobs",
        why="half of the bias",
    ),
    Pair(
        "logprobs-follow-the-declared-rule",
        (GREEDY, biased(0.0)),
        (GREEDY, biased(10.0)),
        pointer="/output_top_logprobs",
        target=Target(capabilities=frozenset({"logprobs-of-the-model"})),
        why="biases",
    ),
    Pair(
        "logprobs-follow-the-declared-rule",
        (GREEDY, warm(2.0)),
        (GREEDY, warm(1.0)),
        pointer="/output_top_logprobs",
        target=Target(capabilities=frozenset({"logprobs-at-the-temperature"})),
    ),
    Pair(
        "logprobs-follow-the-declared-rule",
        (GREEDY, truncated(0.5)),
        (GREEDY, truncated(0.0)),
        pointer="/output_top_logprobs",
        target=Target(capabilities=frozenset({"logprobs-as-sampled"})),
        why="truncation",
    ),
    Pair(
        "chat-logprobs-have-content",
        chat(content()),
        chat({"tokens": list(TEXT), "token_logprobs": [-1.0] * 6}),
        pointer="/logprobs",
    ),
    Pair(
        "chat-logprobs-have-content",
        chat(content()),
        chat(TOP_WRITTEN_TWICE),
        pointer="/logprobs",
        why="an alternative without a logprob",
    ),
    Pair(
        "alternatives-have-names",
        chat(with_alternative("z", [122]), top_logprobs=2),
        chat(with_alternative("", []), top_logprobs=2),
        pointer="/logprobs_content",
    ),
    Pair(
        "greedy-logprobs-are-likely",
        chat(content()),
        chat([{**content()[0], "logprob": -9999.0}, *content()[1:]]),
        pointer="/logprobs_content",
    ),
    Pair("chat-logprobs-count-the-tokens", chat(content()), chat(content()[:5])),
    Pair(
        "chat-logprobs-count-the-tokens",
        chat(content()[:5], stop=True),
        chat(content()[:4], stop=True),
        why="more than the stop id is missing",
    ),
    Pair(
        "chat-logprobs-spell-the-text",
        chat(content()),
        chat(content("abXdef")),
        pointer="/logprobs",
    ),
    Pair(
        "tokens-of-logprobs-are-shown",
        chat(content(), text=f"<{TEXT}>"),
        chat(content(), text=TEXT[:-1]),
        pointer="/text",
    ),
    Pair(
        "completion-logprobs-are-parallel",
        completion(lists()),
        completion(lists(tokens=["a", "b"])),
        pointer="",
    ),
    Pair(
        "text-offsets-add-up",
        completion(lists()),
        completion(lists(text_offset=[0, 1, 2, 0, 1, 2])),
    ),
    Pair(
        "prompt-top-logprobs-belong-to-position",
        whole(Reply(prompt_series=PROMPT_TOP), **ASKED_TOP),
        whole(Reply(prompt_series=SHIFTED_TOP), **ASKED_TOP),
        pointer="/input_top_logprobs",
    ),
    Pair(
        "stream-prompt-series-equal-whole",
        told_in_stream(prompt_entries(PROMPT)),
        told_in_stream(prompt_entries(PROMPT)[:2]),
        5,
        "/input_token_logprobs",
    ),
    Pair(
        "prompt-logprobs-independent-of-start",
        (scored(), scored(start=2)),
        (scored(), scored(start=2, shift=0.5)),
        pointer="/input_token_logprobs",
    ),
    Pair(
        "prompt-logprobs-independent-of-start",
        (scored(), scored(start=2)),
        (scored(), scored(start=2, null_at=3)),
        pointer="/input_token_logprobs",
        why="null behind the border",
    ),
    Pair(
        "prompt-logprobs-rescore-the-output",
        sent_back(0.01),
        sent_back(0.5),
        pointer="/input_token_logprobs",
    ),
    Pair(
        "prompt-logprobs-rescore-the-output",
        long_sent_back(off_at=7),
        long_sent_back(off_at=0),
        pointer="/input_token_logprobs",
        why="the first position",
    ),
    Pair(
        "prompt-logprobs-rescore-the-output",
        (
            *long_sent_back(off_at=7),
            *long_sent_back(off_at=8, prompt=(4, 5)),
            *long_sent_back(off_at=9, prompt=(6,)),
        ),
        (
            *long_sent_back(off_at=7),
            *long_sent_back(off_at=7, prompt=(4, 5)),
            *long_sent_back(off_at=7, prompt=(6,)),
        ),
        pointer="/input_token_logprobs",
        why="one position after each prompt",
    ),
    Pair("echo-begins-with-the-prompt", echoed("Say abcdef"), echoed("say abcdef"), pointer="/text"),
    Pair(
        "echo-adds-only-the-prompt",
        (PLAIN, echoed("Say abcdef")),
        (PLAIN, echoed("Say Say abcdef")),
        pointer="/text",
    ),
    Pair("echo-logprobs-cover-the-prompt", with_echo(ECHO_LISTS), with_echo(lists())),
    Pair(
        "prompt-ids-come-first",
        incremental(Reply(prompt_ids=PROMPT), return_prompt_token_ids=True),
        LATE,
        5,
        "/prompt_token_ids",
    ),
    Pair(
        "prompt-ids-need-no-output",
        whole(Reply(ids=(), text="", prompt_ids=PROMPT), return_prompt_token_ids=True),
        whole(Reply(ids=(), text=""), return_prompt_token_ids=True),
    ),
    Pair(
        "one-beginning-of-sequence",
        (from_text((1,), (30, 31), "one"), from_text((1,), (40,), "two")),
        (from_text((1,), (30, 31), "one"), from_text((1, 1), (40,), "two")),
        pointer="/prompt_token_ids",
    ),
    Pair(
        "null-content-is-empty-content",
        (conversation("", 1, 2), conversation(None, 1, 2)),
        (conversation("", 1, 2), conversation(None, 1, 30, 2)),
        pointer="/prompt_token_ids",
    ),
    Pair(
        "chosen-ids-replace-the-likeliest",
        chosen_in_top(40, 11),
        chosen_in_top(40, 11, 12),
        pointer="/choices/0/logprobs/content",
    ),
    Pair(
        "chosen-ids-replace-the-likeliest",
        chosen_in_top(11, sampled=40),
        chosen_in_top(40, 11, sampled=40),
        pointer="/choices/0/logprobs/content",
        why="the sampled id is one of the chosen",
    ),
    Pair(
        "prompt-ids-spell-the-text",
        from_text((), (11, 12, 13), "abc"),
        from_text((), (11, 12), "abc"),
        pointer="/prompt_token_ids",
        target=LETTERS,
    ),
    Pair(
        "media-ids-are-run-as-sent",
        with_media((1, 50, 2)),
        with_media((1, 50, 50, 2)),
        pointer="/prompt_token_ids",
    ),
    Pair(
        "own-ids-are-accepted",
        (named(whole(), "generate/first"), named(whole(input_ids=((*PROMPT, 11),)), "generate/second")),
        (named(whole(), "generate/first"), refusal(input_ids=((*PROMPT, 11),))),
    ),
    Pair(
        "next-turn-begins-with-the-last",
        next_turn((*TURN, 9)),
        next_turn((*TURN[:-1], 99, 9)),
        pointer="/prompt_token_ids",
    ),
]
