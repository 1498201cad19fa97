"""Pairs for decisions: questions that are answered with probabilities."""

from __future__ import annotations

import json
from typing import Any

from control_calls import clock
from pair import Pair
from stream_builder import whole

from tokenwire.checks.check import Target
from tokenwire.dialects.control import ControlCall, read_call
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read

ANSWERED = (whole(),)
"""Another answer of the run: decisions are calls beside it."""
NAMED = {
    "team": {"type": "choice", "criteria": {"a": None, "b": None}},
    "angry": {"type": "noul"},
    "damage": {"type": "score", "criteria": ["none", "small", "large"]},
}
BY_NAME = {
    "team": {"type": "choice", "choice": "b", "probabilities": {"a": 0.25, "b": 0.75}},
    "angry": {"type": "noul", "noul": 0.5},
    "damage": {
        "type": "score",
        "score": 1.1,
        "confidence": 0.4,
        "probabilities": {"0": 0.2, "1": 0.5, "2": 0.3},
    },
}
LISTED = [
    {"type": "choice", "name": "team", "instructions": "?", "choices": [{"value": "a"}, {"value": "b"}]},
    {"type": "predicate", "name": "angry", "instructions": "?"},
]
BY_PLACE = [
    {
        "type": "choice",
        "name": "team",
        "choice": "b",
        "probabilities": [{"value": "a", "probability": 0.25}, {"value": "b", "probability": 0.75}],
    },
    {"type": "predicate", "name": "angry", "probability": 0.5},
]
WITH_IDS = [
    {"id": "team", "type": "choice", "question": "?", "options": [{"name": "a"}, {"name": "b"}]},
    {"id": "angry", "type": "yes_no", "question": "?"},
    {"id": "damage", "type": "score", "question": "?", "levels": ["none", "small", "large"]},
]
BY_ID = {
    "team": {"type": "choice", "probabilities": {"a": 0.25, "b": 0.75}, "label_mass": 0.9, "choice": "b"},
    "angry": {"type": "yes_no", "probabilities": {"yes": 0.5, "no": 0.5}, "label_mass": 1.0},
    "damage": {
        "type": "score",
        "probabilities": {"0": 0.2, "1": 0.5, "2": 0.3},
        "label_mass": 0.0,
        "score": 1.1,
    },
}
"""SGLang's form."""
COUNTS = {"input_tokens": 9, "output_tokens": 3}
PROMPT_COUNTS = {"prompt_tokens": 9, "total_tokens": 9, "reasoning_tokens": 0}


def decision(questions: Any, answers: Any, path: str = "/v1/systemone", **usage: int) -> ControlCall:
    """A call that was answered with these answers."""
    document = {"answers": answers, "usage": usage or COUNTS}
    exchange = Exchange(
        f"vllm-chat/one/{'-'.join(map(str, questions))[:40]}",
        HttpRequest("POST", path, {"model": "m", "questions": questions}),
        "one",
        200,
        (),
        (Read(0.01, json.dumps(document).encode()),),
        Ending.COMPLETE,
        duration=0.01,
        started=clock(1),
    )
    call = read_call(exchange)
    assert call is not None
    return call


def by_name(**changed: dict[str, Any]) -> Target:
    """All questions by name, with changed fields in some answers."""
    answers = {name: {**answer, **changed.get(name, {})} for name, answer in BY_NAME.items()}
    return Target(calls=(decision(NAMED, answers),))


def by_id(usage: dict[str, int] = PROMPT_COUNTS, **changed: dict[str, Any]) -> Target:
    """All questions of SGLang's form, with changed fields in some answers."""
    answers = {name: {**answer, **changed.get(name, {})} for name, answer in BY_ID.items()}
    return Target(calls=(decision(WITH_IDS, answers, "/v1/decisions", **usage),))


def flags(*values: Any) -> Target:
    """A choice between true and "True", which are two options in OpenAI's form."""
    question = {"type": "choice", "instructions": "?", "choices": [{"value": True}, {"value": "True"}]}
    shares = [{"value": value, "probability": 0.5} for value in values]
    answer = {"type": "choice", "name": None, "choice": True, "probabilities": shares}
    return Target(calls=(decision([question], [answer], "/v1/decisions", total_tokens=12, **COUNTS),))


def by_place(*answers: Any) -> Target:
    return Target(calls=(decision(LISTED, answers, "/v1/decisions", total_tokens=12, **COUNTS),))


def alone(noul: float) -> Target:
    """All questions, and one of them alone."""
    single = decision({"angry": NAMED["angry"]}, {"angry": {"type": "noul", "noul": noul}})
    return Target(calls=(decision(NAMED, BY_NAME), single))


def counted(**usage: int) -> Target:
    return Target(calls=(decision(NAMED, BY_NAME, **usage),))


def pair(row: str, good: Target, bad: Target, pointer: str, why: str = "") -> Pair:
    return Pair(row, ANSWERED, ANSWERED, pointer=pointer, target=good, bad_target=bad, why=why)


DECISION_PAIRS = [
    pair(
        "decisions-answer-their-questions",
        by_name(),
        by_name(team={"type": "score"}),
        "/answers/team",
        "another type",
    ),
    pair(
        "decisions-answer-their-questions",
        by_place(*BY_PLACE),
        by_place(*BY_PLACE[:1]),
        "/answers/1",
        "no answer",
    ),
    pair(
        "decisions-answer-their-questions",
        by_place(*BY_PLACE),
        by_place(BY_PLACE[0], {**BY_PLACE[1], "name": "team"}),
        "/answers/1",
        "another name",
    ),
    *(
        pair(
            "decision-probabilities-add-up",
            by_name(),
            by_name(**{name: wrong}),
            f"/answers/{name}/probabilities",
            why,
        )
        for name, wrong, why in (
            ("team", {"probabilities": {"a": 0.25, "b": 0.5}}, "the sum"),
            ("team", {"probabilities": {"b": 1.0}}, "an option is missing"),
            ("team", {"probabilities": {"a": -0.25, "b": 1.25}}, "below 0"),
            ("team", {"probabilities": {"a": None, "b": 1.0}}, "null"),
            ("angry", {"noul": 1.5}, "above 1"),
        )
    ),
    pair(
        "decision-probabilities-add-up",
        by_place(*BY_PLACE),
        by_place({**BY_PLACE[0], "probabilities": BY_PLACE[0]["probabilities"][:1]}, BY_PLACE[1]),
        "/answers/0/probabilities",
        "in a list",
    ),
    pair(
        "decisions-answer-their-questions",
        by_place(BY_PLACE[0], {"type": "refusal", "name": "angry"}),
        by_place(BY_PLACE[0], {"type": "refusal", "name": "team"}),
        "/answers/1",
        "a refusal, of another name",
    ),
    pair(
        "decisions-answer-their-questions",
        by_id(),
        by_id(angry={"type": "refusal"}),
        "/answers/angry",
        "a form without refusals",
    ),
    *(
        pair(
            "decision-probabilities-add-up",
            by_id(),
            by_id(**{name: wrong}),
            f"/answers/{name}/probabilities",
            why,
        )
        for name, wrong, why in (
            ("team", {"probabilities": {"a": 0.25, "c": 0.75}}, "another option, in SGLang's form"),
            ("angry", {"probabilities": {"yes": 0.5}, "noul": 0.5}, "no is missing"),
            ("damage", {"probabilities": {"0": 0.5, "1": 0.5}}, "a level is missing"),
        )
    ),
    pair(
        "decision-probabilities-add-up",
        flags(True, "True"),
        flags(True, True),
        "/answers/0/probabilities",
        "a boolean and a text",
    ),
    pair(
        "decision-yes-is-one-number",
        by_name(angry={"probabilities": {"yes": 0.5, "no": 0.5}}),
        by_name(angry={"probabilities": {"yes": 0.75, "no": 0.25}}),
        "/answers/angry/noul",
    ),
    *(
        pair("decision-confidence-is-a-share", by_name(), by_name(**wrong), f"/answers/{pointer}", why)
        for wrong, pointer, why in (
            ({"damage": {"confidence": 1.5}}, "damage/confidence", "above 1"),
            ({"angry": {"x_label_mass": "0.5"}}, "angry/x_label_mass", "a text"),
        )
    ),
    pair(
        "decision-confidence-is-a-share",
        by_id(),
        by_id(team={"label_mass": -0.1}),
        "/answers/team/label_mass",
        "below 0",
    ),
    pair("decision-is-the-likeliest", by_name(), by_name(team={"choice": "a"}), "/answers/team/choice"),
    pair("decision-is-the-likeliest", by_id(), by_id(team={"choice": "a"}), "/answers/team/choice", "by id"),
    pair("decision-score-is-the-mean", by_name(), by_name(damage={"score": 2.1}), "/answers/damage/score"),
    pair("decision-usage-adds-up", counted(), counted(input_tokens=0, output_tokens=3), "/usage"),
    pair(
        "decision-usage-adds-up",
        counted(**COUNTS, total_tokens=12),
        counted(**COUNTS, total_tokens=9),
        "/usage",
        "the total",
    ),
    pair(
        "decision-usage-adds-up",
        by_id(),
        by_id(usage={"input_tokens": 9, "total_tokens": 9}),
        "/usage",
        "the names of another form",
    ),
    pair("decisions-depend-on-their-question-alone", alone(0.51), alone(0.6), "/answers/angry/probabilities"),
]
