"""The language of schedules: what it says, and what it refuses."""

import pytest

from tokenwire_engine.schedule import End, Key, Schedule, parse_schedule, schedule_of

READ = {
    "": Schedule(),
    "steps=2,0,4": Schedule(steps=(2, 0, 4)),
    "wait=3;join=2:pair": Schedule(wait=3, join=(2, "pair")),
    "hold=4;late": Schedule(hold=4, late=True),
    "info=a,b/step,c@3,d/step@2": Schedule(
        info=(Key("a"), Key("b", by_step=True), Key("c", 3), Key("d", 2, by_step=True))
    ),
    "abort=5": Schedule(end=End("abort", 5)),
    "error=2:503": Schedule(end=End("error", 2, 503)),
    "repeat=6;drafts=3": Schedule(end=End("repeat", 6), drafts=3),
    "retract=2;die=9;cached=8": Schedule(retract=2, die=9, cached=8),
    "logprobs=nan@2;weights=v7;kv=peer-1": Schedule(logprobs=("nan", 2), weights="v7", kv="peer-1"),
}
REFUSED = {
    "steps=": "is not a whole number",
    "steps=1,0": "the last step is repeated",
    "steps=-1": "'-1' is not a whole number",
    "steps=٣": "is not a whole number",
    "steps=9999999999": "is not a whole number",
    "join=0": "from 1 to 256",
    "info=a/token": "'a/token' is not NAME",
    "info=a b": "'a b' is not a name",
    "logprobs=inf@2": "nan@OUTPUT or none@OUTPUT",
    "error=2:200": "from 400 to 599",
    "abort=1;error=2": "occurs twice",
    "tempo=3": "unknown schedule word 'tempo'",
    ";".join(["steps=1"] * 200): "the schedule has",
}


@pytest.mark.parametrize(("text", "schedule"), READ.items())
def test_a_schedule_is_read(text: str, schedule: Schedule) -> None:
    assert parse_schedule(text) == schedule


@pytest.mark.parametrize(("text", "words"), REFUSED.items())
def test_what_is_wrong_is_refused_with_the_word(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", "\\(")):
        parse_schedule(text)


def test_a_request_brings_it_in_its_field_or_in_its_id() -> None:
    default = Schedule(steps=(4,))
    assert schedule_of("steps=2", "schedule(steps=3)", default) == Schedule(steps=(2,))
    assert schedule_of(None, "chatcmpl-schedule(steps=3;late)-7", default) == Schedule(steps=(3,), late=True)
    assert schedule_of(None, "chatcmpl-7", default) == default
    with pytest.raises(ValueError, match="must be a string, not int"):
        schedule_of(3, "", default)
