"""Small-scope proof of a front end: all schedules of a few tokens, each compared with the exact answer of the
parrot.

A front end must return the same answer for all ways in which the engine under it takes its steps. This proof
enumerates all schedules of short answers: all ways to divide an answer into steps, to keep outputs and send
them together, and to finish in a separate step. It also enumerates all batches of a few requests. The answers
contain different difficulties: plain text, a character of several tokens, and stop strings that one step
completes together. The requests of a batch have different keys of `customized_info` if the server has such
keys: another key, a late key, or no key.

If a schedule makes the front end crash, it is started again, and the enumeration continues.

    python -m proofs.schedules                              the output side of the reference, in this process
    python -m proofs.schedules --target http://…            a front end that `tokenwire engine` runs
    python -m proofs.schedules --engine 'vllm-rs serve'     the same, but start and stop the front end
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from itertools import chain, count, product, takewhile
from typing import Any, NamedTuple

import tokenwire.checks  # noqa: F401  # registers all of them
from tokenwire.ask import Ask
from tokenwire.asking.recorder import Recorder
from tokenwire.checks.about import traits_of
from tokenwire.checks.check import CHECKS, Target
from tokenwire.commands.with_engine import engine_below
from tokenwire.dialects.dialect import Dialect, Unsupported, load_dialects
from tokenwire.parrot.encoding import encoder
from tokenwire.parrot.law import DISTANCE, Parrot
from tokenwire.parrot.recognition import KnownModel
from tokenwire.parrot.script import Script, Truth, truth
from tokenwire.parrot.vocabulary import Vocabulary, Words, byte_letters, crossing, words_of
from tokenwire.record import Choice, Stream
from tokenwire.wire.exchange import Ending, Exchange
from tokenwire_engine.schedule import KEY, Key, Schedule
from tokenwire_reference.core.detokenizer import Detokenizer
from tokenwire_reference.core.output_streamer import OutputStreamer
from tokenwire_reference.core.request import Request, SamplingParams
from tokenwire_reference.core.stopping import StopRules
from tokenwire_reference.doors.reader import Delivery, Reader

TOKENS, REQUESTS = 6, 3
KEYED_TOKENS = 4
"""The maximum number of tokens in a batch whose requests have different keys."""
KEYS = ((), (Key("a"),), (Key("b"),), (Key("a", first=1),))
"""The keys of `customized_info` of a request: none, one key, another key, and a key that appears late."""
INTERVALS = (1, 2, 3, 4)
_FILLER = b"~"
_AT_ONCE = 24
_DIALECTS = ("sglang-generate", "vllm-completions")
_PROBE = "abort=1"
"""An engine that reads schedules ends a request with this schedule as aborted."""
_OBSERVED = frozenset(
    {"script-ids-are-said", "script-text-is-right", "script-finish-is-right", "script-logprobs-are-right"}
)
"""Every answer is checked at least against these requirements."""
_CUT, _REFUSED, _KILLS = "answered to its end", "answered", "the front end survives"
_UNANSWERED = {_CUT, _REFUSED}
_DEATHS = 8
"""The maximum number of restarts after crashes. The enumeration ends with the next crash."""
_TIMEOUT_S = 30.0
_ENTRIES = "output_token_logprobs"
_SHOWN = 400
"""The maximum number of characters of a failing answer that are printed."""


@dataclass(frozen=True)
class StoppedAnswer:
    """An answer and the stop strings of its request."""

    ids: tuple[int, ...]
    stop: tuple[str, ...] = ()


@cache
def words() -> Words:
    """The vocabulary of the parrot that the front end serves."""
    return words_of(Vocabulary.BYTE_LEVEL)


@cache
def stories() -> Mapping[str, StoppedAnswer]:
    """Return answers of at most `TOKENS` tokens, each with another difficulty."""
    known = words()

    def spelled(text: str | bytes) -> tuple[int, ...]:
        data = text.encode() if isinstance(text, str) else text
        return tuple(known.longest(bytes([byte])) for byte in data)

    found = crossing(known)
    assert found is not None, "our own vocabulary has such a piece"
    border, both = found
    return {
        "plain": StoppedAnswer(spelled("abcdef")),
        "character": StoppedAnswer(spelled("a😀b")),
        "stop": StoppedAnswer(spelled("abQZcd"), ("QZ",)),
        "stops": StoppedAnswer(spelled("abXcdY"), ("dY", "X")),
        "border": StoppedAnswer((*spelled("ab"), *border, *spelled("cdef"))[:TOKENS], (both,)),
    }


class ScheduledRequest(NamedTuple):
    """One request of a batch."""

    story: str
    schedule: Schedule
    tokens: int
    stream: bool


Batch = tuple[ScheduledRequest, ...]


def written(schedule: Schedule) -> str:
    """Return a schedule as text, without default values."""
    given = ((field.name, getattr(schedule, field.name), field.default) for field in fields(schedule))
    return ";".join(f"{name}={_value(value)}" for name, value, default in given if value != default)


def _value(value: Any) -> str:
    match value:
        case Key():
            return f"{value.name}{'/step' * value.by_step}@{value.first}"
        case (int(size), str(batch)):
            return f"{size}:{batch}"
        case tuple():
            return ",".join(map(_value, value))
    return str(int(value) if isinstance(value, bool) else value)


def compositions(tokens: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to divide a number of tokens into steps."""
    if tokens == 0:
        yield ()
    for first in range(1, tokens + 1):
        for rest in compositions(tokens - first):
            yield (first, *rest)


def alone(tokens: int) -> Iterator[Batch]:
    """Yield all schedules of single requests: all steps, numbers of held outputs and ways to end, for each
    story.
    """
    for length in range(1, tokens + 1):
        for steps in compositions(length):
            for hold, late, story, stream in product(
                range(1, len(steps) + 1), (False, True), stories(), (False, True)
            ):
                yield (ScheduledRequest(story, Schedule(steps=steps, hold=hold, late=late), length, stream),)


def together(tokens: int, requests: int, *, each: bool) -> Iterator[Batch]:
    """Yield all batches of several requests that start in the same step.

    `tokens` is the number of tokens of each request if `each` is True, and otherwise of all requests
    together.
    """
    plain = [(steps, length) for length in range(1, tokens + 1) for steps in compositions(length)]
    for size in range(2, requests + 1):
        for chosen in product(range(len(plain)), repeat=size):
            if each and list(chosen) != sorted(chosen):
                continue  # the order of equal requests in a batch changes nothing that is enumerated here
            if not each and sum(plain[place][1] for place in chosen) > tokens:
                continue
            yield tuple(
                ScheduledRequest(
                    "plain", Schedule(steps=plain[place][0]), plain[place][1], stream=bool(number % 2)
                )
                for number, place in enumerate(chosen)
            )


def keyed(tokens: int, requests: int) -> Iterator[Batch]:
    """Yield all batches whose requests have different keys of `customized_info`, and single requests with a
    key.
    """
    plain = [(steps, length) for length in range(1, tokens + 1) for steps in compositions(length)]
    single = (
        (ScheduledRequest("plain", Schedule(steps=steps), length, stream),)
        for (steps, length), stream in product(plain, (False, True))
    )
    for batch in chain(single, together(tokens, requests, each=False)):
        for keys in product(KEYS, repeat=len(batch)):
            if len({*keys, *[()] * (len(batch) == 1)}) > 1:
                yield tuple(
                    case._replace(schedule=replace(case.schedule, info=info))
                    for case, info in zip(batch, keys, strict=True)
                )


def attached(case: ScheduledRequest, series: Iterable[tuple[range, Mapping[str, Any]]]) -> Iterator[str]:
    """Yield a message for each wrong value in the keys of a request. Each series has the values of some
    outputs.

    A late key has null for earlier outputs, and may be absent until its first value.
    """
    due = {key.name: key.first for key in case.schedule.info if key.first < case.tokens}
    for places, found in series:
        for name, first in due.items():
            right = [f"{name}{place}" if place >= first else None for place in places]
            if (values := list(found.get(name) or [None] * len(places))) != right:
                yield f"the values of {name} are {values} instead of {right}"
        if strange := sorted(found.keys() - due):
            yield f"the keys {strange} belong to other requests"


# A front end over HTTP


@dataclass
class FrontEnd:
    """A front end over the engine, and the dialect and the model of its requests."""

    recorder: Recorder
    dialect: Dialect
    model: str
    target: Target
    numbers: Iterator[int]

    async def failures(self, batch: Batch) -> list[tuple[str, str]]:
        """Return a pair of a requirement and a message for each violation in the answers to a batch."""
        number = next(self.numbers)
        found = await asyncio.gather(
            *(self._one(case, (len(batch), f"b{number}"), f"{number}-{i}") for i, case in enumerate(batch))
        )
        return [failure for failures in found for failure in failures]

    def request(self, case: ScheduledRequest, schedule: str) -> Any:
        """Return the request for a case, with a schedule."""
        story, extra = stories()[case.story], {KEY: schedule}
        raw: dict[str, Any] = {"vllm_xargs": extra}
        if self.dialect.family == "sglang":
            raw = {"sampling_params": {"custom_params": extra}}
        ask = Ask(
            input_ids=(Script(story.ids[: case.tokens]).prompt(_law(), words().longest(_FILLER)),),
            max_new_tokens=case.tokens,
            stop=story.stop,
            ignore_eos=True,
            logprobs=True,
            return_token_ids=True,
            stream=case.stream,
            usage=case.stream,
            raw=raw,
        )
        request = self.dialect.render(ask, self.model)
        if isinstance(request, Unsupported):
            raise TypeError(f"{self.dialect.name} cannot ask: {request.reason}")
        return request

    async def shows_keys(self) -> bool:
        """Return True if the client receives the value of a key."""
        case = ScheduledRequest("plain", Schedule(info=KEYS[1]), 1, stream=False)
        _, stream = await self._answer(case, written(case.schedule), "keys")
        return any(choice.customized for choice in stream.choices)

    async def _answer(self, case: ScheduledRequest, schedule: str, name: str) -> tuple[Exchange, Stream]:
        request = self.request(case, schedule)
        exchange = await self.recorder.send(f"schedules/{name}", "schedules", request)
        return exchange, self.dialect.read(exchange)

    async def _one(self, case: ScheduledRequest, join: tuple[int, str], name: str) -> list[tuple[str, str]]:
        schedule = replace(case.schedule, join=join) if join[0] > 1 else case.schedule
        exchange, stream = await self._answer(case, written(schedule), name)
        cut = exchange.ending is not Ending.COMPLETE
        if cut or not stream.answered or stream.error is not None:
            body = b"".join(read.data for read in exchange.reads)[-_SHOWN:]
            message = f"status {exchange.status}, {exchange.ending.value}: {body!r}"
            return [(_CUT if cut else _REFUSED, message)]
        keys = (("keys", message) for one in stream.choices for message in attached(case, _customized(one)))
        return [*judged(stream, self.target), *keys]


def _customized(choice: Choice) -> Iterator[tuple[range, Mapping[str, Any]]]:
    """Yield the outputs of each emission of a choice, with the values for these outputs."""
    for emission in choice.emissions:
        outputs = range(emission.after - emission.expected_entries, emission.after)
        yield outputs, {name: emission.series[name] for name in emission.customized}


def judged(stream: Stream, target: Target) -> Iterator[tuple[str, str]]:
    """Yield each violated requirement about the exact answer with the message of the violation, and also the
    requirements that had nothing to observe but should have.
    """
    traits, observed = traits_of(stream), set[str]()
    for name, check in CHECKS.items():
        if name.startswith("script-") and check.observe is not None and check.about.admits(traits):
            for seen in check.observe(stream, target):
                observed.add(name)
                if not seen.holds:
                    yield name, seen.message
                    break
    if missing := sorted(_OBSERVED - observed):
        yield "observed", f"{', '.join(missing)} had nothing to observe in the answer"


def _law() -> Parrot:
    return Parrot(len(words().pieces), DISTANCE)


def _target() -> Target:
    return Target(model=KnownModel(_law(), words(), encoder(Vocabulary.BYTE_LEVEL), True, ""))


Failed = dict[str, tuple[Batch, str, int]]
"""The failures by name: the smallest batch, the message, and the number of batches with this failure."""


@dataclass
class Lives:
    """A front end that is started again after each crash."""

    start: Callable[[], AbstractContextManager[str]]
    deaths: int = 0
    _stack: ExitStack = field(default_factory=ExitStack)
    _places: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, _AT_ONCE))

    async def begin(self) -> FrontEnd:
        """Stop the front end if it runs, and start it."""
        self.end()
        url = self._stack.enter_context(self.start())
        recorder = Recorder(url, timeout_s=_TIMEOUT_S, max_concurrency=_AT_ONCE * REQUESTS)
        self.front_end = await found_at(recorder)
        return self.front_end

    def end(self) -> None:
        """Stop the front end."""
        self._stack.close()

    async def failures(self, batches: Sequence[Batch]) -> list[dict[str, str]] | None:
        """Return the violations of each batch; None if the front end crashed in one of several batches."""

        async def of_one(batch: Batch) -> dict[str, str]:
            async with self._places:
                return dict(await self.front_end.failures(batch))

        found = await asyncio.gather(*map(of_one, batches))
        cut = [failures[_CUT] for failures in found if _CUT in failures]
        if not cut or not _UNANSWERED & dict(await self.front_end.failures(next(alone(1)))).keys():
            return found
        self.deaths += 1
        await self.begin()
        return [{_KILLS: cut[0]}] if len(batches) == 1 else None

    async def failures_of(self, batch: Batch) -> dict[str, str]:
        """Return the violations of one batch."""
        (found,) = await self.failures([batch]) or [{}]
        return found

    async def each(self, batches: Sequence[Batch], most: int) -> AsyncIterator[tuple[Batch, dict[str, str]]]:
        """Yield batches with their violations, until the front end has crashed more than `most` times.

        Batches with keys are sent alone, because their keys may appear in all requests that run at the same
        time.
        """
        start = 0
        while start < len(batches) and self.deaths <= most:
            some = batches[start : start + 4 * _AT_ONCE]
            some = list(takewhile(lambda batch: not _has_keys(batch), some)) or some[:1]
            start, found = start + len(some), await self.failures(some)
            for place, batch in enumerate(some):
                if found is None and self.deaths > most:
                    return
                yield batch, found[place] if found is not None else await self.failures_of(batch)


async def run(
    start: Callable[[], AbstractContextManager[str]], batches: Iterable[Batch], most: int = 0
) -> tuple[int, int, Failed]:
    """Send all batches. Return the number of batches, the number of requests, and the failures.

    The function ends early after more than `most` crashes of the front end.
    """
    asked = requests = 0
    failed: Failed = {}
    lives = Lives(start)
    try:
        front_end = await lives.begin()
        every = list(batches)
        shows_keys = await front_end.shows_keys()
        fitting = [batch for batch in every if shows_keys or not _has_keys(batch)]
        if len(fitting) < len(every):
            print(f"the front end shows no customized_info; {len(every) - len(fitting)} schedules need it")
        async for batch, failures in lives.each(fitting, most):
            asked, requests = asked + 1, requests + len(batch)
            _note(failed, batch, failures)
        if lives.deaths:
            left = len(fitting) - asked
            print(f"the front end died {lives.deaths} times; {left} schedules were not sent")
        for name, (batch, message, times) in list(failed.items()):
            failed[name] = (*await _shrunk(lives.failures_of, name, batch, message), times)
    finally:
        lives.end()
    return asked, requests, failed


def _has_keys(batch: Batch) -> bool:
    """Return True if a request of the batch has keys of `customized_info`."""
    return any(case.schedule.info for case in batch)


def _note(failed: Failed, batch: Batch, failures: Mapping[str, str]) -> None:
    """Count the failures of a batch, and keep the smallest batch for each kind of failure."""
    for name, message in failures.items():
        smallest, found, times = failed.get(name, (batch, message, 0))
        if size_of(batch) < size_of(smallest):
            smallest, found = batch, message
        failed[name] = (smallest, found, times + 1)


async def found_at(recorder: Recorder) -> FrontEnd:
    """Return the first endpoint that answers and forwards schedules to the engine."""
    for name in _DIALECTS:
        front_end = FrontEnd(recorder, load_dialects()[name], "parrot", _target(), count())
        ((case,),) = [next(alone(1))]
        answered = not _UNANSWERED & dict(await front_end.failures((case,))).keys()
        _, aborted = await front_end._answer(case._replace(stream=False), _PROBE, name)
        if answered and any(choice.finish and choice.finish.type == "abort" for choice in aborted.choices):
            return front_end
    raise SystemExit(
        "no endpoint of vLLM or SGLang forwards schedules; start the front end with `tokenwire engine`"
    )


def size_of(batch: Batch) -> tuple[int, ...]:
    """Return a key for sorting, which is smaller for batches that are easier to understand."""
    return (
        len(batch),
        sum(case.tokens for case in batch),
        sum(len(case.schedule.steps) for case in batch),
        sum(case.schedule.hold + case.schedule.late for case in batch),
        sum(1 + key.first for case in batch for key in case.schedule.info),
        sum(case.story != "plain" for case in batch),
    )


def smaller(batch: Batch) -> Iterator[Batch]:
    """Yield batches that are a little smaller: one request, step, token or special option less."""
    for place, case in enumerate(batch):
        before, after, schedule = batch[:place], batch[place + 1 :], case.schedule
        if len(batch) > 1:
            yield (*before, *after)
        steps = schedule.steps
        joined = [(*steps[:i], steps[i] + steps[i + 1], *steps[i + 2 :]) for i in range(len(steps) - 1)]
        fewer = [(*steps[:i], step - 1, *steps[i + 1 :]) for i, step in enumerate(steps) if step > 1]
        fewer += [
            (*steps[:i], *steps[i + 1 :]) for i, step in enumerate(steps) if step == 1 and len(steps) > 1
        ]
        cases = [
            case._replace(schedule=replace(schedule, steps=one), tokens=sum(one)) for one in joined + fewer
        ]
        if schedule.hold > 1:
            cases.append(case._replace(schedule=replace(schedule, hold=1)))
        if schedule.late:
            cases.append(case._replace(schedule=replace(schedule, late=False)))
        if schedule.info:
            cases.append(case._replace(schedule=replace(schedule, info=())))
        if case.story != "plain":
            cases.append(case._replace(story="plain"))
        yield from ((*before, one, *after) for one in cases)


async def _shrunk(
    failures: Callable[[Batch], Awaitable[Mapping[str, str]]], name: str, batch: Batch, message: str
) -> tuple[Batch, str]:
    """Find the smallest batch near a failing batch that fails in the same way. Return this batch and its
    message.
    """
    while True:
        for one in smaller(batch):
            found = await failures(one)
            if size_of(one) < size_of(batch) and name in found:
                batch, message = one, found[name]
                break
        else:
            return batch, message


# The reference, in this process


class _Pieces:
    """The vocabulary in the form that the reference's detokenizer reads."""

    def __len__(self) -> int:
        return len(words().pieces)

    def decode(self, ids: Any, *, skip_special_tokens: bool = False, **_: bool) -> str:
        hidden = words().special if skip_special_tokens else frozenset()
        return words().text([token for token in ids if token not in hidden])

    def convert_ids_to_tokens(self, token_id: int) -> str:
        letters = byte_letters()
        return "".join(letters[byte] for byte in words().pieces[token_id])


def reference_failures(batch: Batch, interval: int, delivery: Delivery) -> Iterator[tuple[str, str]]:
    """Deliver a batch with the output side of the reference, and yield its differences from the exact
    answers.
    """
    streamer = OutputStreamer(stream_interval=interval)
    running = [_Delivered(case, f"r{place}", streamer, delivery) for place, case in enumerate(batch)]
    while any(not one.over for one in running):
        touched = [one for one in running if one.step()]
        for row in streamer.stream([one.request for one in touched]):
            next(one for one in running if one.request is row.record).reader.append(row)
        for one in running:
            one.take()
    for one in running:
        yield from one.differences()


class _Delivered:
    """A request that takes its steps from its schedule, and the emissions that its consumer took."""

    def __init__(
        self, case: ScheduledRequest, rid: str, streamer: OutputStreamer, delivery: Delivery
    ) -> None:
        story = stories()[case.story]
        self.case, self.delivery = case, delivery
        self.prompt = Script(story.ids[: case.tokens]).prompt(_law(), words().longest(_FILLER))
        sampling = SamplingParams(max_new_tokens=case.tokens, stop=story.stop, ignore_eos=True)
        self.request = Request(rid, self.prompt, sampling, stream=case.stream, return_logprob=True)
        spelled = Detokenizer.of(_Pieces(), sampling, self.prompt)  # type: ignore[arg-type]
        self.rules = StopRules(
            sampling,
            frozenset(),
            case.tokens,
            Detokenizer.of(_Pieces(), sampling, self.prompt),  # type: ignore[arg-type]
        )
        self.reader = Reader(0, self.request, spelled)
        self.taken: list[Any] = []
        self.steps = 0
        streamer.admit(self.request)

    @property
    def over(self) -> bool:
        return self.request.finish is not None and not self.reader.pending

    def step(self) -> bool:
        """Run a step of the schedule. Return False if the schedule is over."""
        request, story = self.request, stories()[self.case.story]
        if request.finish is not None:
            return False
        for _ in range(self.case.schedule.step(self.steps)):
            if request.finish is None:
                place = len(request.output_ids)
                values = {
                    key.name: f"{key.name}{place}" for key in self.case.schedule.info if place >= key.first
                }
                request.append(story.ids[place], {_ENTRIES: [-0.5, story.ids[place], None]}, values)
                request.finish = self.rules.check(request.output_ids)
        request.held_back = request.stream and self.rules.hold_back(request.output_ids)
        self.steps += 1
        return True

    def take(self) -> None:
        """Take pending output. The consumer waits between two reads for the number of steps that the schedule
        holds.
        """
        if self.reader.pending and (self.steps % self.case.schedule.hold == 0 or self.request.finish):
            self.taken.append(self.reader.take(self.delivery))

    @property
    def right(self) -> Truth:
        """The exact answer."""
        dialect = load_dialects()["sglang-generate"]
        ask = Ask(input_ids=(self.prompt,), max_new_tokens=self.case.tokens, ignore_eos=True)
        request = dialect.render(replace(ask, stop=stories()[self.case.story].stop))
        if isinstance(request, Unsupported):
            raise TypeError(request.reason)
        known = truth(_law(), words(), self.prompt, dialect.read_asked(request))
        if known is None:
            raise TypeError("the exact answer is unknown")
        return known

    def differences(self) -> Iterator[tuple[str, str]]:
        """Yield the differences from the exact answer."""
        right, joined, text = self.right, list[int](), ""
        entries: list[Any] = []
        for emission in self.taken:
            if self.delivery is Delivery.CUMULATIVE:
                joined, text, entries = [], "", []
            joined += emission.output_ids
            text += emission.text
            entries += emission.series.get(_ENTRIES, [])
            if not any(legal.startswith(text) for legal in right.legal):
                yield "text so far", f"{text!r} is not the beginning of {right.text!r}"
        ends = [emission.finish is not None for emission in self.taken]
        finish = self.request.finish
        found = {"ids": tuple(joined), "text": text, "entries": len(entries), "ends": ends.count(True)}
        found["finish"] = finish.type if finish is not None else None
        due = {
            "ids": right.ids,
            "text": right.text,
            "entries": len(right.ids),
            "ends": 1,
            "finish": right.finish,
        }
        yield from (("keys", message) for message in attached(self.case, self._keys()))
        for name, value in due.items():
            if found[name] != value:
                yield name, f"{found[name]!r} instead of {value!r}"
        if ends and not ends[-1]:
            yield "ends", "an emission follows the end"

    def _keys(self) -> Iterator[tuple[range, Mapping[str, Any]]]:
        """Yield the outputs of each emission, with the values for these outputs."""
        for emission in self.taken:
            end = emission.completion_tokens
            values = {name: value for name, value in emission.series.items() if name != _ENTRIES}
            yield range(end - len(emission.output_ids), end), values


def run_reference(batches: Iterable[Batch]) -> tuple[int, int, Failed]:
    """Deliver all batches at each interval in both modes. Return counts and failures as `run` does."""
    asked = requests = 0
    failed: Failed = {}
    for batch in batches:
        for interval, delivery in product(INTERVALS, Delivery):
            asked, requests = asked + 1, requests + len(batch)
            _note(failed, batch, dict(reference_failures(batch, interval, delivery)))
    return asked, requests, failed


def scope(tokens: int, requests: int, *, each: bool) -> Iterator[Batch]:
    """Yield all batches, from small to large."""
    yield from alone(tokens)
    yield from together(tokens, requests, each=each)
    yield from keyed(min(tokens, KEYED_TOKENS), requests)


def main() -> int:
    """Run the enumeration, and print counts and the smallest schedule for each kind of failure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", help="base URL of a front end over the engine")
    parser.add_argument("--engine", help="the command that starts a front end")
    parser.add_argument("--tokens", type=int, default=TOKENS, choices=range(1, TOKENS + 1))
    parser.add_argument("--requests", type=int, default=REQUESTS, choices=range(1, REQUESTS + 1))
    parser.add_argument(
        "--each",
        action="store_true",
        help="in batches, each request has up to this number of tokens, not all together",
    )
    parser.add_argument(
        "--deaths", type=int, default=_DEATHS, help="how often a crashed front end is started again"
    )
    options = parser.parse_args()
    batches = scope(options.tokens, options.requests, each=options.each)
    if options.target or options.engine:
        command, deaths = options.engine, options.deaths if options.engine else 0

        def start() -> AbstractContextManager[str]:
            return engine_below(command) if command else nullcontext(options.target)

        asked, requests, failed = asyncio.run(run(start, batches, deaths))
    else:
        asked, requests, failed = run_reference(batches)
    for name, (batch, message, times) in sorted(failed.items()):
        print(f"{name}: {times} schedules; the smallest:")
        for case in batch:
            form, schedule = "streamed" if case.stream else "whole", written(case.schedule)
            print(f"  {case.story}, {case.tokens} tokens, {form}: {schedule or 'a token in each step'}")
        print(f"  {message}")
    print(f"{asked} schedules, {requests} requests: {len(failed)} kinds of failure")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
