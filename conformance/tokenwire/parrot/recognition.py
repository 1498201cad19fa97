"""Recognition of a parrot from its answers: the rules by which it repeats, and its vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nsmallest
from itertools import islice, takewhile
from operator import eq, ne

from tokenwire.parrot.encoding import Encode, chat_text, encoder, last_text, most_tokens
from tokenwire.parrot.law import LEAST_DISTANCE, Law, Parrot, Repeater, positions_of
from tokenwire.parrot.script import truth
from tokenwire.parrot.vocabulary import Vocabulary, Words, words_of
from tokenwire.record import Answer, Stream, fact

Ids = tuple[int, ...]

_DISTANCES = (1024, 4096, 2048, 512, 256, 128, 64, 32, 16, 8192, 16384)
"""The distances to try. The default comes first, because several distances may explain the same answers."""
_ENOUGH = 16
"""The least number of ids that must support the rules of a parrot.

The supporting ids must also outnumber the ids that contradict the rules.
"""
_MOST_TEXTS = 32
"""The most answers whose text is compared with the rules."""
_LEAST_TEXT = 16
"""The least number of characters with which a text counts as evidence."""
_UNSEEN = 512
"""The most tokens of a stored conversation in a request that continues this conversation."""
_MOST_ENDED = 256
"""The most answers whose end is compared with the rules."""


@dataclass(frozen=True)
class OtherTokenizer:
    """The tokenizer of a parrot whose vocabulary is not one of ours."""

    words: Words | None
    """The bytes of each id. None if the text of ids is not the concatenation of these bytes."""
    encode: Encode


@dataclass(frozen=True)
class KnownModel:
    """A model for which the right answers can be computed."""

    law: Law
    words: Words
    encode: Encode
    ours: bool
    """True if `tokenwire parrot` writes this vocabulary and its chat template."""
    seen_in: str
    """The name of the exchange by which the model was recognized."""

    @property
    def longest(self) -> int | None:
        """The maximum length of prompt and answer together, in tokens; None if unknown."""
        return positions_of(self.law.distance) if isinstance(self.law, Parrot) else None

    def prompts(self, stream: Answer) -> list[Ids | None]:
        """Return the token ids of each prompt in a request.

        An entry is None if the ids of the prompt are unknown.
        """
        return _prompts(stream, self.encode, self.ours)

    def ending(self, stream: Stream, budget: int) -> tuple[Ids, int] | None:
        """Return the last ids of a conversation's prompt, and the lag at which the whole answer repeats these
        ids. The ids must not depend on the way in which the server formats the earlier messages. Return None
        if the ids are unknown.
        """
        messages, body = stream.asked.sent.get("messages"), stream.exchange.request.body
        text = last_text(messages.values[0]) if self.ours and messages and len(messages.values) == 1 else None
        if text is None or not isinstance(self.law, Parrot) or not isinstance(body, Mapping):
            return None
        ids = self.encode(text)
        told = [messages.values[0] if messages else None, body.get("system"), body.get("instructions")]
        unseen = _UNSEEN * any(name.startswith("previous_") for name in body)
        longest = most_tokens(told, self.encode) + unseen + budget
        lags = {self.law.lag(len(ids)), self.law.lag(longest)}
        return (ids, min(lags)) if len(lags) == 1 and len(ids) >= min(lags) else None


def _prompts(stream: Answer, encode: Encode, ours: bool) -> list[Ids | None]:
    asked = stream.asked
    if asked.media:
        return []
    if asked.input_ids is not None:
        return list(asked.input_ids)
    if asked.texts:
        return [encode(text) for text in asked.texts]
    messages = asked.sent.get("messages")
    text = chat_text(messages.values[0]) if ours and messages and len(messages.values) == 1 else None
    return [_returned_prompt(stream) if text is None else encode(text)]


@fact(Stream)
def _returned_prompt(stream: Stream) -> Ids | None:
    emissions = (emission for choice in stream.choices for emission in choice.emissions)
    reported = (emission.prompt_token_ids for emission in emissions)
    return _as_ids(next((ids for ids in reported if ids), None))


def _as_ids(value: object) -> Ids | None:
    """Return an untrusted value as a tuple of ids; None if it is not a list of integers."""
    known = isinstance(value, (list, tuple)) and set(map(type, value)) == {int}
    return tuple(value) if isinstance(value, (list, tuple)) and known else None


@dataclass(frozen=True)
class _KnownAnswer:
    """An answer whose prompt ids and output ids are known."""

    name: str
    prompt: Ids
    ids: Ids

    @cached_property
    def nearest(self) -> list[int]:
        """The distance from each id of prompt and answer to the previous occurrence of the id.

        It is 0 for the first occurrence.
        """
        last: dict[int, int] = {}
        distances = []
        for position, token in enumerate((*self.prompt, *self.ids)):
            distances.append(position - last.get(token, position))
            last[token] = position
        return distances

    def weigh(self, law: Law) -> tuple[int, int]:
        """Return the number of ids that only these rules explain, and the number of ids that contradict these
        rules. An id is evidence only if it does not occur within the lag before it. So a model that repeats a
        shorter loop, or a single id, gives no evidence.
        """
        whole, begin = (*self.prompt, *self.ids), len(self.prompt)
        kept = broken = 0
        for start, end, lag in law.spans(begin, len(whole)):
            if lag > 1:
                others = sum(map(ne, whole[start:end], whole[start - lag : end - lag]))
                broken += others
                kept += self.nearest[start:end].count(lag) if others < end - start else 0
        return kept, broken


def _known_answers(streams: Iterable[Answer]) -> Iterator[_KnownAnswer]:
    """Yield the greedy answers to prompts whose ids were sent, or returned by the server."""
    for stream in streams:
        if not stream.answered or not stream.asked.likeliest or stream.asked.media:
            continue
        sent = stream.asked.input_ids or (_returned_prompt(stream),)
        for choice in stream.choices:
            position = choice.index // max(stream.asked.n, 1)
            prompt, ids = sent[position] if position < len(sent) else None, _as_ids(choice.output_ids)
            if prompt and ids:
                yield _KnownAnswer(stream.exchange.name, prompt, ids)


@dataclass
class _Weight:
    """The number of ids in answers that support or contradict some rules."""

    kept: int = 0
    broken: int = 0
    most: int = -1
    name: str = ""
    """The name of the exchange with the most evidence for the rules."""

    def add(self, name: str, kept: int, broken: int) -> None:
        self.kept += kept
        self.broken += broken
        if kept > self.most:
            self.most, self.name = kept, name


def _law(answers: Callable[[], Iterable[_KnownAnswer]], foreign: bool) -> tuple[Law, str] | None:
    """Return the rules that the fewest ids contradict, and the exchange with the most evidence for these
    rules. Return None if no rules fit.
    """
    laws: list[Law] = [Parrot(0, distance) for distance in _DISTANCES]
    if foreign:
        far = Counter(
            d for answer in answers() for d in answer.nearest[len(answer.prompt) :] if d >= LEAST_DISTANCE
        )
        laws += (Repeater(distance) for distance, _ in far.most_common(1))
    best: tuple[int, Law, str] | None = None
    weights = [_Weight() for _ in laws]
    for answer in answers():
        for law, weight in zip(laws, weights, strict=True):
            weight.add(answer.name, *answer.weigh(law))
    for law, weight in zip(laws, weights, strict=True):
        kept, broken = weight.kept, weight.broken
        if kept >= _ENOUGH and kept > broken and (best is None or broken < best[0]):
            best = broken, law, weight.name
    return best[1:] if best else None


@dataclass(frozen=True)
class _EndedText:
    """A complete answer and its text."""

    stream: Answer
    text: str


def _ended_texts(streams: Iterable[Answer], *, with_ids: bool) -> Iterator[_EndedText]:
    for stream in streams:
        asked = stream.asked
        if not stream.answered or not asked.likeliest or asked.echo or asked.n * asked.prompts != 1:
            continue
        text, finish = stream.choices[0].text, stream.choices[0].finish
        known = isinstance(text, str) and len(text) >= _LEAST_TEXT and len(set(text)) > _LEAST_TEXT // 2
        known = known and (not with_ids or bool(stream.choices[0].output_ids))
        known = known and (with_ids or not _is_an_echo(stream, text or ""))
        if known and finish is not None and finish.type in {"stop", "length"}:
            yield _EndedText(stream, text or "")


def _is_an_echo(stream: Answer, text: str) -> bool:
    """True if a text is the whole prompt or the whole last message. Some mock servers give such answers."""
    asked = stream.asked
    messages = asked.sent.get("messages")
    last = _last_message(messages.values[0]) if messages else ""
    return text.strip() in {prompt.strip() for prompt in (*(asked.texts or ()), last)}


def _last_message(messages: object) -> str:
    """Return the text of the last message; empty without messages."""
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, Mapping) else None
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def _is_spelled(words: Words, answer: _EndedText) -> bool:
    """True if this vocabulary decodes the output ids to the text of the answer, up to a stop."""
    ids = _as_ids(answer.stream.choices[0].output_ids) or ()
    skip = words.special if answer.stream.asked.skip_special_tokens else frozenset()
    if not all(0 <= token < len(words.pieces) for token in ids):
        return False
    spelled = b"".join(words.pieces[token] for token in ids if token not in skip)
    return spelled.decode("utf-8", "replace").startswith(answer.text.rstrip("\ufffd"))


def _agreement(law: Law, words: Words, prompts: Sequence[Ids | None], answer: _EndedText) -> int:
    """Return the length of the common beginning of an answer and the text that a model must output.

    Return 0 if the length is too small to decide. A wrong stop and visible special tokens do not influence
    the result.
    """
    prompt = prompts[0] if len(prompts) == 1 else None
    if prompt is None or not all(0 <= token < len(words.pieces) for token in prompt):
        return 0
    longest = 0
    for skip in (True, False):
        wants = replace(answer.stream.asked, stop=(), stop_token_ids=(), skip_special_tokens=skip)
        known = truth(law, words, prompt, wants)
        if known is not None:
            longest = max(longest, sum(takewhile(bool, map(eq, answer.text, known.text))))
    return longest if longest >= _LEAST_TEXT else 0


def recognised(streams: Iterable[Answer], other: OtherTokenizer | None = None) -> KnownModel | None:
    """Return the parrot that produced these answers, or None if a parrot did not produce them.

    The vocabulary of the parrot is one of ours, or that of `other`.
    """
    streams = list(streams)
    first = next(_known_answers(streams), None)
    ended = _ended_texts(streams, with_ids=first is not None)
    reported = nsmallest(_MOST_TEXTS, ended, key=lambda answer: -len(set(answer.text)))
    candidates: Sequence[tuple[Law, str]]
    if first is not None:
        found = _law(lambda: _known_answers(streams), foreign=other is not None)
        candidates = [found] if found else []
    else:
        candidates = (
            [(Parrot(0, distance), "") for distance in _DISTANCES] if any(map(_may_repeat, reported)) else []
        )
    if not candidates:
        return None
    best: tuple[int, KnownModel] | None = None
    for words, encode, ours in _vocabularies(other):
        prompts = [[] if first else _prompts(answer.stream, encode, ours) for answer in reported]
        for law, name in candidates:
            sized = Parrot(len(words.pieces), law.distance) if isinstance(law, Parrot) else law
            model = KnownModel(sized, words, encode, ours, name)
            right = [
                int(_is_spelled(words, answer)) if first else _agreement(law, words, sent, answer)
                for answer, sent in zip(reported, prompts, strict=True)
            ]
            kept, broken = sum(map(bool, right)), right.count(0)
            # Without texts, the most common vocabulary is assumed.
            silent = bool(first) and not reported
            # Without ids, a third of the texts suffices: a text of this length is not right by chance.
            enough = kept > broken if first else 2 * kept > broken
            if (enough or silent) and (best is None or sum(right) > best[0]):
                seen = name or reported[right.index(max(right))].stream.exchange.name
                best = sum(right), replace(model, seen_in=seen)
    return _with_its_ends(best[1], streams) if best else None


def _with_its_ends(model: KnownModel, streams: Iterable[Answer]) -> KnownModel:
    """Return the model with the correct end ids, because engines differ in the ids that end an answer.

    There are two sets of end ids. Choices that are correct with only one of the two sets decide which set is
    used.
    """
    other = replace(model, words=replace(model.words, ends=model.words.other_ends))
    more = 0
    for stream in islice(filter(_may_end, streams), _MOST_ENDED) if other.words != model.words else ():
        more += _right_choices(other, stream) - _right_choices(model, stream)
    return other if more > 0 else model


def _may_end(stream: Answer) -> bool:
    asked = stream.asked
    return (
        stream.answered and asked.likeliest and not (asked.ignore_eos or asked.stop_token_ids or asked.echo)
    )


def _right_choices(model: KnownModel, stream: Answer) -> int:
    """Return the number of choices whose finish is right, and also their text or their number of tokens."""
    prompts, right = model.prompts(stream), 0
    for choice in stream.choices:
        position = choice.index // max(stream.asked.n, 1)
        prompt = prompts[position] if position < len(prompts) else None
        if prompt is None or not all(0 <= token < len(model.words.pieces) for token in prompt):
            continue
        known = truth(model.law, model.words, prompt, stream.asked, choice.index)
        if known is None or choice.finish is None or choice.finish.type != known.finish:
            continue
        usage = stream.usage if len(stream.choices) == 1 and stream.usage is not None else choice.counters
        right += (choice.text or "") in known.legal or usage.get("completion_tokens") == len(known.ids)
    return right


def _vocabularies(other: OtherTokenizer | None) -> list[tuple[Words, Encode, bool]]:
    """Return the vocabularies to try, each with its tokenizer.

    The last value is True if the vocabulary is ours.
    """
    ours = [(words_of(kind), encoder(kind), True) for kind in Vocabulary]
    if other is None:
        return ours
    if other.words is None:
        return []
    known = any(replace(words, ends=other.words.ends) == other.words for words, *_ in ours)
    return [(other.words, other.encode, known)]


def _may_repeat(answer: _EndedText) -> bool:
    """True if an answer may repeat its prompt. This is decided without a vocabulary."""
    asked = answer.stream.asked
    messages = asked.sent.get("messages")
    texts = asked.texts or ((chat_text(messages.values[0]) or "",) if messages else ())
    return asked.input_ids is not None or any(answer.text[:_LEAST_TEXT] in text for text in texts)
