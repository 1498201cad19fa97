"""Pairs for the chapter on results of inputs."""

from __future__ import annotations

from base64 import b64encode
from struct import pack
from typing import Any

from pair import Pair
from wire_answers import answered

from tokenwire.checks.check import Target
from tokenwire.record import Stream
from tokenwire.target.advertised import Advertised

_ALONE, _OTHER = [0.6, 0.8], [0.8, 0.6]
_PACKED, _BACKWARDS = (b64encode(pack(f"{order}2f", *_ALONE)).decode() for order in "<>")


def embedded(
    inputs: Any, *vectors: Any, indexes: tuple[int, ...] = (), count: int = 2, **body: Any
) -> Stream:
    """What /v1/embeddings answers; an exchange of its own for each way to ask."""
    places = indexes or range(len(vectors))
    data = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in zip(places, vectors, strict=True)
    ]
    usage = {"prompt_tokens": count, "total_tokens": count}
    answer = {"object": "list", "data": data, "model": "m", "usage": usage}
    asked = {"model": "m", "input": inputs, **body}
    return answered("openai-embeddings", asked, answer, label=str(hash(repr(asked))))


def _ranked(*scores: float) -> Stream:
    results = [{"index": index, "relevance_score": score} for index, score in enumerate(scores)]
    asked = {"model": "m", "query": "q", "documents": ["a", "b"]}
    return answered("vllm-rerank", asked, {"id": "r", "model": "m", "results": results})


def _best(*indexes: int) -> tuple[Stream, ...]:
    """All of three results, and those that were left when the best two were wanted."""
    scores, asked = (0.2, 0.1, 0.3), {"model": "m", "query": "q", "documents": ["a", "b", "c"]}

    def ranked(places: tuple[int, ...], **body: Any) -> Stream:
        results = [{"index": index, "relevance_score": scores[index]} for index in places]
        answer = {"id": "r", "model": "m", "results": results}
        return answered("vllm-rerank", {**asked, **body}, answer, label=f"best-{len(body)}")

    return ranked((2, 0, 1)), ranked(indexes, top_n=2)


def _small(score: float) -> tuple[Stream, ...]:
    """The score of a text that was asked for twice."""

    def answer(value: float, label: str) -> Stream:
        data = [{"index": 0, "object": "score", "score": value}]
        asked = {"model": "m", "text_1": "q", "text_2": ["a"]}
        return answered("vllm-score", asked, {"id": "s", "object": "list", "data": data}, label=label)

    return answer(0.12, "one"), answer(score, "two")


def _scored(documents: list[str], status: int) -> Stream:
    answer = {"id": "r", "model": "m", "results": []} if status < 400 else {"error": {"message": "none"}}
    return answered("vllm-rerank", {"query": "q", "documents": documents}, answer, status=status)


def _embedded_or_refused(inputs: Any, status: int) -> Stream:
    good = embedded(inputs, _ALONE).events[0].data
    answer = good if status < 400 else {"error": {"message": "not that"}}
    return answered("openai-embeddings", {"model": "m", "input": inputs}, answer, status=status)


def _truncated(count: int) -> tuple[Stream, ...]:
    whole, head = embedded([5, 6, 7], _ALONE, count=3), embedded([5, 6], _OTHER)
    return whole, head, embedded([5, 6, 7], _OTHER, count=count, truncate_prompt_tokens=2)


_SHORT = Target(advertised=Advertised(context_length=2))

RESULT_PAIRS = [
    Pair(
        "results-stand-in-order",
        embedded(["a", "b"], _ALONE, _OTHER),
        embedded(["a", "b"], _ALONE, _OTHER, indexes=(1, 0)),
    ),
    Pair("best-results-come-first", _ranked(0.9, 0.1), _ranked(0.1, 0.9)),
    Pair(
        "results-depend-on-their-input-alone",
        (embedded([5, 6], _ALONE), embedded([[7], [5, 6]], _OTHER, _ALONE)),
        (embedded([5, 6], _ALONE), embedded([[7], [5, 6]], _ALONE, _OTHER)),
        None,
        "/data/1/embedding",
    ),
    Pair(
        "results-depend-on-their-input-alone",
        (embedded("a", _ALONE), embedded("a", _PACKED, encoding_format="base64")),
        (embedded("a", _ALONE), embedded("a", _BACKWARDS, encoding_format="base64")),
        None,
        "/data/0/embedding",
        why="packed",
    ),
    Pair(
        "results-depend-on-their-input-alone",
        (embedded("a", [0.6, 0.8]), embedded(["a"], [0.62, 0.79])),
        (embedded("a", [0.6, 0.8]), embedded(["a"], [0.64, 0.77])),
        None,
        "/data/0/embedding",
        why="no farther apart than rounding explains",
    ),
    Pair(
        "results-depend-on-their-input-alone",
        (embedded([[5, 6], [5, 6]], _ALONE, _ALONE),),
        (embedded([[5, 6], [5, 6]], _ALONE, _OTHER),),
        None,
        "/data/1/embedding",
        why="one input twice in a request",
    ),
    Pair(
        "results-depend-on-their-input-alone",
        _small(0.124),
        _small(0.147),
        None,
        "/data/0/score",
        why="a score is a small number",
    ),
    Pair("best-results-are-left", _best(2, 0), _best(2, 1), None, "/results/1/relevance_score"),
    Pair("truncated-inputs-are-counted", _truncated(2), _truncated(3)),
    Pair("empty-inputs-refused", _embedded_or_refused(["a", ""], 400), _embedded_or_refused(["a", ""], 200)),
    Pair("empty-inputs-refused", _scored([], 400), _scored([], 200), why="no document"),
    Pair(
        "long-inputs-refused",
        _embedded_or_refused([5, 6, 7], 400),
        _embedded_or_refused([5, 6, 7], 200),
        target=_SHORT,
    ),
]
