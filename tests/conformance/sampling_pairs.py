"""Pairs for the chapter on sampling."""

from __future__ import annotations

from typing import Any

from known_answer_pairs import MODEL, PARROT
from pair import Pair
from stream_builder import IDS, STOP, TEXT, Reply, named, whole

from tokenwire.record import Stream

SURE, UNSURE = -0.01, -4.0
OTHER_IDS = (11, 12, 13, 14, 15, 17)


def scored(ids: tuple[int, ...] = IDS, logprob: float = UNSURE) -> Reply:
    """A choice whose sampled ids all have one logprob."""
    return Reply(ids=ids, series={"output_token_logprobs": [[logprob, token, None] for token in ids]})


def answer(name: str, *replies: Reply, **asked: Any) -> Stream:
    """A whole answer to the one prompt of the pairs."""
    return named(whole(*replies, **({"prompt_key": "p", "max_new_tokens": 6, "key": ""} | asked)), name)


def warm(name: str, *replies: Reply, **asked: Any) -> Stream:
    return answer(name, *replies, **({"greedy": False, "temperature": 1.0} | asked))


def seeded(name: str, ids: tuple[int, ...] = IDS) -> Stream:
    return warm(name, Reply(ids=ids), seed=7, key="seeded")


GREEDY = answer("one/greedy", scored())
NATURAL = answer("one/natural", Reply())
IN_WORDS = answer("one/natural", Reply(ids=None))
LOOP = (40,) * 30


def biased(reply: Reply, **bias: float) -> Stream:
    by_id = {int(name[1:]): value for name, value in bias.items()}
    return answer("one/biased", reply, logit_bias=by_id, other_sampling="bias")


LONG_WORD = MODEL.encode("zzzz")
SAYS_WORDS = answer("one/natural", Reply(ids=(*MODEL.encode("Paris"), 7), text="ab"))


def restricted(ids: tuple[int, ...], **asked: Any) -> Stream:
    """An answer to a request that restricts the ids which may be sampled."""
    reply = Reply(ids=ids, text="x" * len(ids))
    return answer("one/restricted", reply, **asked, other_sampling="restricted", constrained=True)


def ranked(*rank: int) -> Reply:
    """A choice whose first ids stand at some places among three ids that are likely by halves."""
    ids = IDS[: len(rank)]
    likely = [-0.7, -1.4, -2.8]
    rows = []
    for token, item in zip(ids, rank, strict=True):
        row = [[logprob, 90 + place, None] for place, logprob in enumerate(likely)]
        row[item] = [likely[item], token, None]
        rows.append(row)
    sampled = [[likely[item], token, None] for token, item in zip(ids, rank, strict=True)]
    series = {"output_token_logprobs": sampled, "output_top_logprobs": rows}
    return Reply(ids=ids, text=TEXT[: len(ids)], series=series)


def truncated(reply: Reply, **asked: Any) -> Stream:
    return warm("one/truncated", reply, logprobs=True, top_logprobs=3, max_new_tokens=2, **asked)


SAMPLING_PAIRS = [
    Pair(
        "logit-bias-is-kept",
        (NATURAL, biased(Reply(ids=(40, 40), text="xx"), _40=100.0)),
        (NATURAL, biased(Reply(ids=(40, 11), text="xa"), _40=100.0)),
        pointer="/output_ids",
    ),
    Pair(
        "logit-bias-is-kept",
        (NATURAL, biased(Reply(ids=OTHER_IDS), _16=-100.0)),
        (NATURAL, biased(Reply(), _16=-100.0)),
        pointer="/output_ids",
        why="an excluded id",
    ),
    Pair(
        "logit-bias-is-kept",
        (NATURAL, biased(Reply(ids=(40, 40), text="xx"), _40=100.0, _11=1.0)),
        (NATURAL, biased(Reply(ids=(40, 11), text="xa"), _40=100.0, _11=1.0)),
        pointer="/output_ids",
        why="a forced id beside one that is only made likelier",
    ),
    Pair(
        "logit-bias-is-kept",
        (IN_WORDS, biased(Reply(ids=None, text="xxxxxx"), _40=100.0)),
        (IN_WORDS, biased(Reply(ids=None), _40=100.0)),
        pointer="/text",
        why="told by the text",
    ),
    Pair(
        "allowed-ids-are-kept",
        (NATURAL, restricted((40, 11, 40), allowed_token_ids=(40, 11))),
        (NATURAL, restricted((40, 12, 40), allowed_token_ids=(40, 11))),
        pointer="/output_ids",
    ),
    Pair(
        "bad-words-do-not-come",
        (SAYS_WORDS, restricted((5, *LONG_WORD[:1], 6), bad_words=(" Paris", "zzzz"))),
        (SAYS_WORDS, restricted((5, *LONG_WORD, 6), bad_words=(" Paris", "zzzz"))),
        pointer="/output_ids",
        target=PARROT,
    ),
    Pair(
        "min-new-tokens-are-kept",
        whole(Reply(finish=STOP), min_new_tokens=5, stop_token_ids=(16,), max_new_tokens=9),
        whole(Reply(finish=STOP), min_new_tokens=7, stop_token_ids=(16,), max_new_tokens=9),
        pointer="/finish",
    ),
    Pair(
        "frequency-penalty-is-kept",
        (
            answer(
                "one/loop",
                Reply(ids=(*LOOP[:23], *OTHER_IDS, 7), text="x" * 30),
                logit_bias={40: 1.0},
                frequency_penalty=2.0,
            ),
        ),
        (answer("one/loop", Reply(ids=LOOP, text="x" * 30), logit_bias={40: 1.0}, frequency_penalty=2.0),),
        pointer="/output_ids",
    ),
    Pair(
        "temperature-is-kept",
        (GREEDY, warm("one/warm", scored()), warm("two/warm", scored(OTHER_IDS))),
        (GREEDY, warm("one/warm", scored()), warm("two/warm", scored())),
        pointer="/output_ids",
    ),
    Pair(
        "seed-is-kept",
        (seeded("one/seeded"), seeded("one/seeded-again")),
        (seeded("one/seeded"), seeded("one/seeded-again", OTHER_IDS)),
        pointer="/output_ids",
    ),
    Pair(
        "samples-are-drawn-apart",
        warm("one/samples", scored(), scored(OTHER_IDS)),
        warm("one/samples", scored(), scored()),
        pointer="/output_ids",
    ),
    Pair(
        "truncation-is-kept",
        truncated(ranked(0, 1), top_k=2),
        truncated(ranked(0, 2), top_k=2),
        pointer="/output_token_logprobs",
    ),
    Pair(
        "truncation-is-kept",
        truncated(ranked(0, 1), top_p=0.6),
        truncated(ranked(0, 2), top_p=0.6),
        pointer="/output_token_logprobs",
        why="top_p",
    ),
    Pair(
        "truncation-is-kept",
        truncated(ranked(0, 1), min_p=0.4),
        truncated(ranked(0, 2), min_p=0.4),
        pointer="/output_token_logprobs",
        why="min_p",
    ),
]
