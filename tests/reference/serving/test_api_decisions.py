"""Decisions: the probabilities of a question's options, and what follows from them."""

from __future__ import annotations

import math

import loopback
import pytest

QUESTIONS = {
    "team": {"type": "choice", "instructions": "Which?", "criteria": {"billing": "Money", "returns": None}},
    "angry": {"type": "noul"},
    "damage": {"type": "score", "criteria": ["none", "small", "large"]},
}
LISTED = [
    {"type": "choice", "name": "team", "instructions": "Which?", "choices": [{"value": "a"}, {"value": "b"}]},
    {"type": "predicate", "instructions": "True."},
    {"type": "score", "instructions": "How?", "levels": [{"label": "none"}, {"label": "large"}]},
]


@pytest.fixture
def url(start_reference):
    return start_reference("--api-dialect", "vllm")


def ask(url, path, **body):
    return loopback.post(f"{url}{path}", json=body)


def test_answers_follow_from_their_probabilities(url):
    answer = ask(url, "/v1/systemone", state="Broken.", questions=QUESTIONS).json()
    assert list(answer["answers"]) == list(QUESTIONS)
    team, angry, damage = answer["answers"].values()
    for found, names in ((team, ["billing", "returns"]), (damage, ["0", "1", "2"])):
        assert list(found["probabilities"]) == names
        assert math.isclose(sum(found["probabilities"].values()), 1)
    assert team["choice"] == max(team["probabilities"], key=team["probabilities"].get)
    assert math.isclose(damage["score"], damage["probabilities"]["1"] + 2 * damage["probabilities"]["2"])
    assert damage["legend"] == {"0": "none", "1": "small", "2": "large"}
    assert 0 < angry["noul"] < 1
    assert answer["usage"]["output_tokens"] == 3 < answer["usage"]["input_tokens"]


def test_a_question_has_the_same_answer_alone(url):
    together = ask(url, "/v1/systemone", state="Broken.", questions=QUESTIONS).json()["answers"]
    for name, question in QUESTIONS.items():
        alone = ask(url, "/v1/systemone", state="Broken.", questions={name: question}).json()["answers"]
        assert alone == {name: together[name]}


def test_a_list_of_questions_has_a_list_of_answers(url):
    answer = ask(url, "/v1/decisions", input="Broken.", questions=LISTED).json()
    team, true, score = answer["answers"]
    assert [entry["value"] for entry in team["probabilities"]] == ["a", "b"]
    assert (team["name"], true["name"], true["type"]) == ("team", None, "predicate")
    assert [entry["label"] for entry in score["probabilities"]] == ["none", "large"]
    assert math.isclose(score["score"], score["probabilities"][1]["probability"])
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/systemone", {"questions": {}}, "questions is empty"),
        ("/v1/systemone", {}, "questions is empty"),
        ("/v1/systemone", {"questions": {"a": {"type": "choice"}}}, "must be an object of options"),
        (
            "/v1/systemone",
            {"questions": {"a": {"type": "score", "criteria": {"x": None}}}},
            "a list of levels",
        ),
        (
            "/v1/systemone",
            {"questions": {"a": {"type": "score", "criteria": ["x"] * 11}}},
            "at most 10 options",
        ),
        ("/v1/decisions", {"input": "x", "questions": []}, "questions"),
        (
            "/v1/decisions",
            {"input": "x", "questions": [{"type": "choice", "instructions": "?"}]},
            "needs choices",
        ),
    ],
)
def test_a_question_without_options_is_refused(path, body, words, url):
    refused = ask(url, path, **body)
    assert (refused.status_code, words in refused.text) == (400, True)
