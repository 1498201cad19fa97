"""Checks of stops: a stop ends a choice, is not visible in the text, and changes nothing if it does not
match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenwire.ask import Asked
from tokenwire.checks.about import about, finished_choices, streamed
from tokenwire.checks.check import Target, check_finished, check_run, once_per_run, select
from tokenwire.checks.evidence import Observation, expect, left_out
from tokenwire.checks.reading.fields import SHOWN, asked_alike, count_of, running_texts, start_place
from tokenwire.checks.reading.refusals import was_refused
from tokenwire.checks.round_trips import Whole, related_streams
from tokenwire.checks.same_answers import same_finish, same_ids, same_text
from tokenwire.dialects.dialect import dialect_of, policy_of
from tokenwire.record import Answer, Choice, ChoiceFacts, Delivery, Place, Stream
from tokenwire.requirement import Level


def stop_string_of(asked: Asked, choice: ChoiceFacts) -> str | None:
    """Return the requested stop string that ended a choice.

    None if no stop string ended the choice, or if the stop is unknown. If a server does not report the stop,
    a stop string in the text must have ended the choice. This does not apply if the request has a minimum
    number of tokens.
    """
    finish = choice.finish
    if finish is None or finish.type != "stop":
        return None
    if finish.matched is not None:
        return finish.matched if finish.matched in asked.stop else None
    text = None if asked.min_new_tokens else choice.text
    return next((stop for stop in asked.stop if stop and text and stop in text), None)


_ONE_TOKEN = 16
"""The maximum distance of two stop strings that one token may complete. The server may then name either of
them.
"""


StopOf = Callable[[Answer, ChoiceFacts], str | None]


@select
def _asks_for_stops(stream: Stream) -> bool:
    """Select the answers to requests with stop strings."""
    return bool(stream.asked.stop)


@once_per_run
def _stopped(streams: tuple[Answer, ...]) -> list[Whole]:
    """Return the answers to requests with stop strings that can be compared with answers without them."""
    return [answer for answer in related_streams(tuple(_asks_for_stops(streams))) if _prompt(answer)]


@once_per_run
def _twins(streams: tuple[Answer, ...]) -> Mapping[tuple[object, ...], Whole]:
    """Return the first answers to the same requests without stop strings.

    A second key also tells streams from whole answers.
    """
    stopped = _stopped(streams)
    wanted = {_unstopped(whole, trimmed=trimmed) for whole in stopped for trimmed in (False, True)}
    found: dict[tuple[object, ...], Whole] = {}
    for answer in related_streams(streams) if wanted else ():
        asked, key = answer.stream.asked, _unstopped(answer)
        if key in wanted and not asked.stop:
            found.setdefault(key, answer)
            found.setdefault((key, asked.stream), answer)
    return found


@once_per_run
def _stops_by_twin(streams: tuple[Answer, ...]) -> Mapping[str, tuple[str, bool]]:
    """Map the name of an answer to the stop string that ended it, and a flag.

    The answer to the same request without stop strings shows which stop string that was. The flag is True if
    the answer ends just before the stop string.
    """
    found: dict[str, tuple[str, bool]] = {}
    for whole in _stopped(streams):
        # Servers differ in whether the minimum number of tokens delays stop strings (spec/stops.md).
        if whole.stream.asked.min_new_tokens:
            continue
        twin, finish = _twins(streams).get(_unstopped(whole, trimmed=True)), whole.choice.finish
        stated, text = twin.choice.text if twin is not None else None, whole.choice.text
        if not stated or text is None or finish is None or finish.type != "stop":
            continue
        ends = _ends(stated, whole.stream.asked.stop)
        stop = min(ends, key=lambda found_stop: ends[found_stop], default="")
        begins = stated[: ends[stop] - len(stop)] if stop else ""
        if stop and text.startswith(begins):
            found[whole.stream.exchange.name] = stop, text == begins
    return found


@once_per_run
def _stop_finder(streams: tuple[Answer, ...]) -> StopOf:
    """Return a function that finds the stop string that ended a choice.

    The function uses the choice itself, or the answer to the same request without stop strings.
    """
    by_twin = _stops_by_twin(streams)

    def stop_of(stream: Answer, choice: ChoiceFacts) -> str | None:
        stop, _ = by_twin.get(stream.exchange.name, (None, False))
        unnamed = choice.finish is None or choice.finish.matched is None
        return stop_string_of(stream.asked, choice) or (stop if unnamed else None)

    return stop_of


@check_run("stop-string-not-shown", alone=True)
def _stop_string_not_shown(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that the text of a choice does not contain the stop string that ended it.

    Requests with a minimum number of tokens are skipped, because their text may contain the string earlier.
    """
    stop_of = _stop_finder(streams)
    for stream in _asks_for_stops(streams):
        asked = stream.asked
        # An echo contains the prompt, which may contain the stop string.
        trimmed = not (asked.no_stop_trim or asked.min_new_tokens or asked.echo)
        for choice in finished_choices(stream) if trimmed else ():
            stop, text = stop_of(stream, choice), choice.text
            if not stop or text is None:
                continue
            message = f"the text of choice {choice.index} contains the stop string {stop!r}"
            yield expect(choice.last_at("text"), f"no {stop!r}", text[-80:], message, holds=stop not in text)


def _final_text(
    stream: Answer, choice: ChoiceFacts, wholes: Mapping[str, Sequence[Answer]], stop_of: StopOf
) -> tuple[str, Place] | None:
    """Return the text of a choice before its stop string, and the place of this text.

    The source is the whole answer to the same request or, without one, the last text of a cumulative stream.
    Deltas of the choice itself are not used.
    """
    for other in wholes.get(stream.asked.key, ()):
        twin = next((c for c in finished_choices(other) if c.index == choice.index), None)
        text = twin.text if twin is not None else None
        if twin is None or text is None:
            continue
        if stop_of(other, twin) == stop_of(stream, choice):
            return text, twin.last_at("text")
    text = choice.text if choice.delivery is Delivery.CUMULATIVE else None
    return None if text is None else (text, choice.last_at("text"))


@check_run("stop-prefix-held-back", alone=True)
def _stop_prefix_held_back(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that a stream never shows text that its stop string removes from the final text."""
    stop_of = _stop_finder(streams)
    wholes: dict[str, list[Answer]] = {}
    for stream in _asks_for_stops(streams):
        if stream.asked.key and stream.delivery is Delivery.WHOLE:
            wholes.setdefault(stream.asked.key, []).append(stream)
    for stream in _asks_for_stops(streams):
        if not streamed(stream) or stream.asked.no_stop_trim:
            continue
        for facts in finished_choices(stream):
            stop = stop_of(stream, facts)
            final = _final_text(stream, facts, wholes, stop_of) if stop else None
            if final is None:
                continue
            text, place = final
            choice = facts.load()
            ended = choice.text or ""
            if not (ended.startswith(text) or text.startswith(ended)):
                continue  # the whole answer and the stream differ by more than the stop
            for emission, shown in running_texts(choice):
                # Text that continues after the right end contains the stop string. Any other difference may
                # be chance.
                if shown:
                    yield expect(
                        emission.at("text"),
                        f"a beginning of {text[-80:]!r}",
                        shown[-80:],
                        f"the text shows {shown[-40:]!r}; before {stop!r} it must end {text[-40:]!r}",
                        holds=text.startswith(shown),
                        related=(place,),
                        by_chance=not shown.startswith(text),
                    )


@check_run("unmatched-stop-changes-nothing")
def _unmatched_stop_changes_nothing(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that stop strings that never match do not change the answer to a request."""
    twins = _twins(streams)
    for whole in _stopped(streams):
        # Other requirements cover differences between a stream and a whole answer.
        twin = twins.get((_unstopped(whole), whole.stream.asked.stream)) or twins.get(_unstopped(whole))
        if twin is None or _may_have_matched(whole, twin):
            continue
        if (
            "" in whole.stream.asked.stop
        ):  # every text contains the empty string, so its position is undefined
            continue
        pair = twin.choice, whole.choice
        seen = [
            observation
            for observe in (same_ids, same_text, same_finish)
            for observation in observe(pair, "the request without stop strings")
        ]
        alike = twin.stream.asked.stream == whole.stream.asked.stream
        if alike or all(observation.holds for observation in seen):
            yield from seen
        else:
            yield left_out(
                whole.choice.last_at(), "the answer without stop strings has another delivery mode"
            )


def _may_have_matched(whole: Whole, twin: Whole) -> bool:
    """True if a stop string may have ended an answer, by its finish reason or by the answer without stop
    strings.

    Not every server reports the stop that ended a choice.
    """
    finish, stops, stated = whole.choice.finish, whole.stream.asked.stop, twin.choice.text
    if stop_string_of(whole.stream.asked, whole.choice) is not None:
        return True
    # A parser may have moved the text with the stop string into another channel.
    elsewhere = (twin.choice.reasoning or "", *(call.arguments for call in twin.choice.load().calls))
    if any(stop in text for stop in stops for text in elsewhere):
        return True
    unnamed = _is_stop(whole) and finish is not None and finish.matched is None
    return unnamed and (stated is None or any(stop in stated for stop in stops))


def _prompt(whole: Whole) -> object:
    """Return the prompt as the request's text, or as its ids. False if both are unknown."""
    return whole.stream.asked.prompt_key or whole.prompt


def _unstopped(whole: Whole, *, trimmed: bool = False) -> tuple[object, ...]:
    """Return a key of everything in a request that influences its answer, except its stop strings.

    `trimmed`: ignore no_stop_trim, so that the key equals the key of the same request without stop strings.
    """
    asked = whole.stream.asked
    kept = asked.no_stop_trim and not trimmed
    fields = ("other_sampling", "max_new_tokens", "stop_token_ids", "stop_regex", "ignore_eos")
    return (_prompt(whole), kept, asked.min_new_tokens or 0, *asked_alike(whole.stream, *fields, *SHOWN))


def _ends(text: str, stops: Iterable[str]) -> dict[str, int]:
    """Return the position at which the first occurrence of each stop string in a text ends."""
    return {stop: text.find(stop) + len(stop) for stop in stops if stop and stop in text}


def _is_stop(whole: Whole) -> bool:
    """True if a choice finished by a stop, even if the server has its own name for this finish."""
    finish, policy = whole.choice.finish, policy_of(whole.stream)
    if finish is None:
        return False
    own_word = policy.other_finish_types and finish.type not in policy.finish_types
    return finish.type == "stop" or own_word


def _stop_in_thoughts(stops: Iterable[str], thoughts: str, all_thoughts: str) -> str:
    """Return the stop string at which the reasoning of a choice ends, although the reasoning would continue
    without the stop string. Empty if there is none.
    """
    if not all_thoughts.startswith(thoughts):
        return ""
    beyond = len(thoughts)
    ends = (stop for stop in stops if thoughts.endswith(stop) or all_thoughts.startswith(stop, beyond))
    return next(ends, "")


@check_run("stop-string-ends-generation")
def _stop_string_ends_generation(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that a stop string ends the choice if it occurs in the first half of the text without stops.

    Other requirements check that the stop string and the rest of its token are hidden.
    """
    for whole in _stopped(streams):
        asked, text = whole.stream.asked, whole.choice.text
        trimmed = _unstopped(whole, trimmed=True)
        twin = _twins(streams).get(trimmed) if not asked.min_new_tokens else None
        stated = twin.choice.text if twin is not None else None
        if twin is None or not stated or text is None:
            continue
        thoughts, all_thoughts = whole.choice.reasoning or "", twin.choice.reasoning or ""
        # Some servers also look for stop strings in the reasoning, and end the choice there.
        if thoughts != all_thoughts:
            if stop := _stop_in_thoughts(asked.stop, thoughts, all_thoughts):
                message = f"the stop string {stop!r} ended the reasoning of the choice, before its content"
                place = whole.choice.last_at("text")
                seen = expect(place, "stops in the content", message, message, holds=False)
                yield seen._replace(level=Level.SHOULD)
            continue
        ends = _ends(stated, asked.stop)
        first = min(ends.values(), default=len(stated))
        # In the second half of the text, the budget or a near tie may come before the stop.
        if 2 * first > len(stated):
            continue
        # One token may complete several stop strings at once. A server may name any of them.
        near = {stop: end for stop, end in ends.items() if end <= first + _ONE_TOKEN}
        cut = [stated[: end - len(stop)] for stop, end in near.items()]
        kept = [stated[:end] for end in near.values()]
        stop = min(near, key=lambda found_stop: near[found_stop])
        goes_on = any(text.startswith(stated[:end]) for end in near.values())
        finish = whole.choice.finish
        # A server that names the stop string may show the rest of the token that completed it.
        longest = max(map(len, kept)) + _ONE_TOKEN
        named = finish is not None and finish.matched in near and len(text) <= longest
        yield expect(
            whole.choice.last_at("text"),
            f"a stop at {stop!r}, after {cut[0][-40:]!r}",
            f"{finish.type if finish else None}, after {text[-40:]!r}",
            f"{stop!r} did not end the choice, but is in the answer without stops",
            holds=_is_stop(whole) and (named or text in [*cut, *kept]),
            related=(twin.choice.last_at("text"),),
            by_chance=not goes_on and text not in [*cut, *kept],
        )


@check_finished("nothing-follows-a-stop-id", about("stop_token_ids", unasked=("ignore_eos",)))
def _nothing_follows_a_stop_id(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a stop id of the request can only be the last id of a choice."""
    asked = stream.asked
    ids = choice.output_ids or []
    positions = [position for position, token in enumerate(ids) if token in asked.stop_token_ids]
    # Before the minimum number of tokens, a server may sample a stop id and continue (spec/sampling.md).
    positions = [position for position in positions if position >= (asked.min_new_tokens or 0)]
    if positions:
        position = positions[0]
        yield expect(
            choice.last_at("output_ids"),
            f"no id after {ids[position]}",
            ids[position : position + 8],
            f"output id {position} of choice {choice.index} is the stop id {ids[position]}, and "
            f"{len(ids) - 1 - position} ids follow it",
            holds=position == len(ids) - 1,
        )


@check_finished("stop-id-stays-as-declared")
def _stop_id_stays_as_declared(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the id that ended a choice is, or is not, the last output id, as the dialect declares."""
    stays = policy_of(stream).stop_id_in_output_ids
    matched = choice.finish.matched if choice.finish is not None else None
    ids = choice.output_ids
    if type(matched) is not int or ids is None or choice.finish is None or choice.finish.type != "stop":
        return
    last = ids[-1] if ids else None
    yield expect(
        choice.last_at("output_ids"),
        f"{matched} last" if stays else f"no {matched} at the end",
        ids[-4:],
        f"the stop id {matched} {'is not' if stays else 'is'} the last output id of choice "
        f"{choice.index}, which ends with {ids[-4:]}",
        holds=(last == matched) is stays,
    )


@check_finished("kept-stop-ends-the-text", about("no_stop_trim", unasked=("echo",)))
def _kept_stop_ends_the_text(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the text ends with the stop string if the request sets no_stop_trim."""
    stop, text = stop_string_of(stream.asked, choice), choice.text
    if stop and text is not None:
        yield expect(
            choice.last_at("text"),
            f"… {stop!r} at the end",
            text[-80:],
            f"the text of choice {choice.index} does not end with the stop string {stop!r} that "
            "although the request keeps it",
            holds=text.endswith(stop),
        )


@select
def _asks_for_any_stop(stream: Stream) -> bool:
    """Select the answers to requests with any stop: strings, ids, patterns, or no_stop_trim."""
    return any(_stopping(stream.asked))


def _is_within_budget(stream: Answer, choice: ChoiceFacts) -> bool:
    """True if the budget of a request cannot have ended a choice."""
    budget, count = stream.asked.max_new_tokens, count_of(stream, choice)
    return budget is None or (count is not None and count < budget)


@check_run("stop-is-named", alone=True)
def _stop_is_named(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that a choice that a stop of its request ended names this stop, if the endpoint has a field for
    it.

    An end-of-sequence id need not be named. So an id is judged only if another answer continues after it. A
    string is judged only if nothing else can have ended the choice. Then the request ignores end-of-sequence
    ids and its budget is left, or the answer without stop strings contains the string.
    """
    by_twin = _stops_by_twin(streams)
    stops_of: dict[str, set[int]] = {}
    for stream in _asks_for_any_stop(streams):
        stops_of.setdefault(stream.dialect, set()).update(stream.asked.stop_token_ids)
    goes_on: dict[str, set[Any]] = {}
    for stream in streams if any(stops_of.values()) else ():
        due, known = stops_of.get(stream.dialect, set()), goes_on.setdefault(stream.dialect, set())
        if stream.asked.ignore_eos or known == due:
            continue
        for choice in finished_choices(stream):
            ids = [token for token in choice.output_ids or [] if type(token) is int]
            known |= due.intersection(ids[:-1])
    for stream in _asks_for_any_stop(streams):
        asked, dialect = stream.asked, dialect_of(stream)
        if dialect is None or not dialect.names_stops:
            continue
        for choice in finished_choices(stream):
            ids, finish = choice.output_ids or [], choice.finish
            if finish is None or finish.type != "stop":
                continue
            last = ids[-1] if ids and type(ids[-1]) is int else None
            by_id = not asked.ignore_eos and last in asked.stop_token_ids
            by_id = by_id and last in goes_on.get(stream.dialect, ())
            others = (
                asked.stop_token_ids or asked.stop_regex
            )  # the specification does not define how a pattern is named
            # Without end-of-sequence ids, only a stop string or the budget can have ended the choice.
            by_string = asked.ignore_eos and bool(asked.stop) and not others
            by_string = by_string and _is_within_budget(stream, choice)
            by_string |= by_twin.get(stream.exchange.name, ("", False))[1]
            if by_id or by_string:
                stops = [last] if by_id else [*asked.stop]
                message = f"choice {choice.index} finished with stop, by one of {stops}, but does not name it"
                place = choice.last_at("finish")
                named = finish.matched is not None
                yield expect(place, f"one of {stops}", finish.matched, message, holds=named)


def _scored(asked: Asked) -> tuple[object, ...]:
    return (asked.top_logprobs, asked.logprob_start, asked.chosen_ids, asked.logprob_texts)


def _stopping(asked: Asked) -> tuple[object, ...]:
    return (asked.stop, asked.stop_token_ids, asked.stop_regex, asked.no_stop_trim)


@select
def _asks_for_logprobs(stream: Stream) -> bool:
    return stream.asked.logprobs


def _but_for_both(stream: Answer) -> tuple[object, ...]:
    """Return a key of a request without its stops and its logprobs."""
    sampling = ("temperature", "seed", "min_new_tokens", "ignore_eos", "other_sampling")
    return asked_alike(stream, "prompt_key", "stream", "n", "max_new_tokens", *sampling)


@check_run("stops-and-logprobs-go-together")
def _stops_and_logprobs_go_together(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that a request with both stops and logprobs is accepted, if requests with only one of
    them are.
    """
    scoring, stopping = _asks_for_logprobs(streams), _asks_for_any_stop(streams)
    both = [stream for stream in scoring if any(_stopping(stream.asked))]
    answered = [stream for stream in (*scoring, *stopping) if stream.answered] if both else []
    stopped = {(*_but_for_both(s), *_stopping(s.asked)) for s in answered if not s.asked.logprobs}
    scored = {(*_but_for_both(s), *_scored(s.asked)) for s in answered if not any(_stopping(s.asked))}
    for stream in both:
        asked, rest = stream.asked, _but_for_both(stream)
        reported = stream.answered or was_refused(stream)
        if reported and (*rest, *_stopping(asked)) in stopped and (*rest, *_scored(asked)) in scored:
            message = (
                "a request with stops and logprobs was refused, but with only one of them it was answered"
            )
            expected = "an answer, as without the stops and without the logprobs"
            actual = "an answer" if stream.answered else f"status {stream.exchange.status}"
            yield expect(start_place(stream), expected, actual, message, holds=stream.answered)
