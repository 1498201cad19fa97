"""Checks of stop strings: not shown, held back in time, and without effect where they do not match."""

from __future__ import annotations

from collections.abc import Iterator

from tokenwire.check import Observation, Target, check, check_run, demand
from tokenwire.checks.relations import Whole, related_streams
from tokenwire.checks.sameness import same_finish, same_ids, same_text
from tokenwire.checks.walk import finished_choices, joined_text, running_texts, streamed
from tokenwire.record import Choice, Delivery, Stream
from tokenwire.stop_string import stop_string_of


@check("stop-string-not-shown")
def stop_string_not_shown(stream: Stream, _target: Target) -> Iterator[Observation]:
    """What stopped a choice is not part of its text."""
    if stream.asked.no_stop_trim:
        return
    for choice in finished_choices(stream):
        stop, text = stop_string_of(stream.asked, choice), joined_text(choice)
        if stop and text is not None:
            message = f"the text of choice {choice.index} contains the stop string {stop!r}"
            yield demand(
                choice.emissions[-1].at("text"),
                stop not in text,
                expected=f"no {stop!r}",
                actual=text[-80:],
                message=message,
            )


def _final_text(stream: Stream, choice: Choice, streams: tuple[Stream, ...]) -> str | None:
    """The text of a choice up to its stop string, as something else than its own deltas says it.

    That is the same request answered whole; failing that, the last snapshot of a cumulative stream.
    """
    for other in streams:
        if other.asked.key == stream.asked.key != "" and other.delivery is Delivery.WHOLE:
            twin = next((c for c in finished_choices(other) if c.index == choice.index), None)
            if twin is not None and stop_string_of(other.asked, twin) == stop_string_of(stream.asked, choice):
                return joined_text(twin)
    return joined_text(choice) if choice.delivery is Delivery.CUMULATIVE else None


@check_run("stop-prefix-held-back")
def stop_prefix_held_back(streams: tuple[Stream, ...], _target: Target) -> Iterator[Observation]:
    """No text was shown that the stop string later took away."""
    for stream in streams:
        if not streamed(stream) or stream.asked.no_stop_trim:
            continue
        for choice in finished_choices(stream):
            stop = stop_string_of(stream.asked, choice)
            final = _final_text(stream, choice, streams) if stop else None
            if final is None:
                continue
            for emission, shown in running_texts(choice):
                if shown:
                    message = f"{shown[-40:]!r} was shown, but the text before {stop!r} ends {final[-40:]!r}"
                    yield demand(
                        emission.at("text"),
                        final.startswith(shown),
                        expected=f"a beginning of {final[-80:]!r}",
                        actual=shown[-80:],
                        message=message,
                    )


@check_run("unmatched-stop-changes-nothing")
def unmatched_stop_changes_nothing(streams: tuple[Stream, ...], _target: Target) -> Iterator[Observation]:
    """A request whose stop strings never matched yields what the same request without them yields."""
    wholes = [one for one in related_streams(streams) if _prompt(one)]
    without = {_unstopped(one): one for one in reversed(wholes) if not one.stream.asked.stop}
    for one in wholes:
        twin = without.get(_unstopped(one)) if one.stream.asked.stop else None
        if twin is None or stop_string_of(one.stream.asked, one.choice) is not None:
            continue
        for look in (same_ids, same_text, same_finish):
            yield from look((twin.choice, one.choice), "the request without stop strings")


def _prompt(one: Whole) -> object:
    """What was prompted with: the words of the request, or its ids; false where neither is known."""
    return one.stream.asked.prompt_key or one.prompt


def _unstopped(one: Whole) -> tuple[object, ...]:
    """All that shapes a result, but for its stop strings."""
    asked = one.stream.asked
    return (
        one.stream.dialect,
        _prompt(one),
        one.sampling,
        asked.max_new_tokens,
        asked.stop_token_ids,
        asked.ignore_eos,
        asked.no_stop_trim,
    )
