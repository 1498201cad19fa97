"""A check that each choice of a request for several choices has the fields of a single choice."""

from __future__ import annotations

from collections.abc import Iterator

from tokenwire.checks.about import ended, finished_choices
from tokenwire.checks.check import Target, check_run, select
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.fields import count_of
from tokenwire.checks.tito import told_once_for_all
from tokenwire.record import Answer, Choice, ChoiceFacts, Stream, fact

_PROMPT_IDS = "prompt_token_ids"
_USAGE = "/usage/"
"""A part of the JSON pointers of counters that belong to the whole answer."""


@fact(Choice)
def _carried(choice: Choice) -> frozenset[str]:
    """Return the names of the fields that have a value in an emission of a choice."""
    names: set[str] = set()
    for emission in choice.emissions:
        series = (*emission.series.items(), *emission.prompt_series.items())
        names |= {name for name, value in series if value}
        # The usage in a finishing event counts the whole answer, and not one of several choices.
        pointers = emission.pointers
        names |= {name for name in emission.counters if _USAGE not in f"{pointers.get(name, '')}/"}
        names |= {"output_ids"} if emission.output_ids else set()
        if emission.prompt_token_ids is not None:  # the list may be empty for an empty prompt
            names.add(_PROMPT_IDS)
    return frozenset(names)


def _wishes(stream: Answer) -> tuple[object, ...]:
    """Return a key of all outputs that a request enables, whatever its prompts and its number of choices."""
    asked = stream.asked
    ids_sent = asked.input_ids is not None
    of_prompt = (asked.return_prompt_token_ids, asked.logprob_start, asked.echo, asked.media, ids_sent)
    of_output = (asked.return_token_ids, asked.logprobs, asked.top_logprobs > 0, asked.logprob_texts)
    chosen = (bool(asked.chosen_ids), bool(asked.chosen_in_top))
    others = (asked.return_meta_info, asked.wanted, asked.usage, asked.continuous_usage, asked.form)
    return (stream.dialect, stream.delivery, asked.stream, *of_prompt, *of_output, *chosen, *others)


def _to_look_at(stream: Answer) -> list[ChoiceFacts]:
    """Return the choices that ended naturally with at least one token. Without tokens, a choice has no
    series.
    """
    complete = finished_choices(stream) if ended(stream) and stream.asked.uniform else ()
    natural = [c for c in complete if c.finish is not None and c.finish.type in {"stop", "length"}]
    return [c for c in natural if count_of(stream, c) != 0 and stream.asked.budget(c.index) != 0]


@select
def _of_several(stream: Stream) -> bool:
    return stream.asked.n * stream.asked.prompts != 1


def _beside_each_other(stream: Answer) -> Iterator[Observation]:
    """Check that all choices of one answer have the same ids and series."""
    choices = _to_look_at(stream)
    of_output = {choice.index: _carried(choice) & {"output_ids", *choice.server_series} for choice in choices}
    due = frozenset[str]().union(*of_output.values())
    for choice in choices if due and len(choices) > 1 else ():
        missing = sorted(due - of_output[choice.index])
        other = next((c for c in choices if missing and missing[0] in of_output[c.index]), choice)
        field = missing[0] if missing else "finish"
        yield expect(
            choice.last_at(field),
            f"what the other choices carry: {', '.join(sorted(due))}",
            f"without {', '.join(missing)}" if missing else "all of it",
            f"choice {choice.index} of {len(stream.choices)} has no {field}, but choice {other.index} does",
            holds=not missing,
            related=(other.last_at(field),) if missing else (),
        )


@check_run("samples-are-asked-alike", alone=True)
def _samples_are_asked_alike(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that every choice of a request for several choices has the requested fields.

    Servers split such a request into requests for one choice each. If a server forgets a field in these
    requests, the field is missing from every choice, or from every choice except the first. A single answer
    shows the second error, because all its choices must have the same series.
    """
    alone: dict[tuple[object, ...], tuple[ChoiceFacts, frozenset[str]]] = {}
    for stream in streams if _of_several(streams) else ():
        for choice in _to_look_at(stream)[:1] if stream.asked.n * stream.asked.prompts == 1 else ():
            first, common = alone.get(_wishes(stream), (choice, _carried(choice)))
            alone[_wishes(stream)] = first, common & _carried(choice)
    for stream in _of_several(streams):
        if _wishes(stream) not in alone:
            yield from _beside_each_other(stream)
            continue
        single, due = alone[_wishes(stream)]
        due -= {_PROMPT_IDS} if told_once_for_all(stream) else set()
        for choice in _to_look_at(stream) if due else ():
            missing = sorted(due - _carried(choice))
            field = missing[0] if missing else "finish"
            yield expect(
                choice.last_at(field),
                f"what an answer of one choice carries: {', '.join(sorted(due))}",
                f"without {', '.join(missing)}" if missing else "all of it",
                f"choice {choice.index} of {len(stream.choices)} has no {field}, but every answer "
                "with one choice to a request for the same fields does",
                holds=not missing,
                related=(single.last_at(field),),
            )
