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
WITH_IDS = [
    {"id": "team", "type": "choice", "question": "Which?", "options": [{"name": "a"}, {"name": "b"}]},
    {"id": "angry", "type": "yes_no", "question": "Angry?"},
    {"id": "damage", "type": "score", "question": "How?", "levels": ["none", "large"]},
]


@pytest.fixture
def url(start_reference):
    return start_reference("--api-dialect", "vllm")


@pytest.fixture
def sglang(start_reference):
    return start_reference()


def ask(url, path, **body):
    return loopback.post(f"{url}{path}", json=body)


@pytest.mark.parametrize("server", ["url", "sglang"])
def test_answers_follow_from_their_probabilities(server, request):
    url = request.getfixturevalue(server)
    answer = ask(url, "/v1/systemone", state="Broken.", questions=QUESTIONS).json()
    assert list(answer["answers"]) == list(QUESTIONS)
    team, angry, damage = answer["answers"].values()
    for found, names in ((team, ["billing", "returns"]), (damage, ["0", "1", "2"])):
        assert list(found["probabilities"]) == names
        assert math.isclose(sum(found["probabilities"].values()), 1)
        assert 0 <= found["confidence"] <= 1
    assert team["choice"] == max(team["probabilities"], key=team["probabilities"].get)
    assert math.isclose(damage["score"], damage["probabilities"]["1"] + 2 * damage["probabilities"]["2"])
    assert damage["legend"] == {"0": "none", "1": "small", "2": "large"}
    assert 0 < angry["noul"] < 1
    assert answer["usage"]["output_tokens"] == {"url": 3, "sglang": 0}[server]
    assert answer["usage"]["input_tokens"] > 3


def test_each_family_has_its_own_fields_in_systemone(url, sglang):
    ours = ask(url, "/v1/systemone", state="Broken.", questions=QUESTIONS).json()
    theirs = ask(sglang, "/v1/systemone", state="Broken.", questions=QUESTIONS).json()
    angry = ours["answers"]["angry"]
    assert angry["probabilities"] == {"yes": angry["noul"], "no": pytest.approx(1 - angry["noul"])}
    assert set(ours) - set(theirs) == {"id", "object", "diagnostics"}
    for name, found in theirs["answers"].items():
        assert found["x_label_mass"] == pytest.approx(ours["diagnostics"][name]["label_mass"])
    assert set(theirs["answers"]["angry"]) == {"type", "noul", "x_label_mass"}
    team = theirs["answers"]["team"]
    assert team["confidence"] == pytest.approx(2 * max(team["probabilities"].values()) - 1)
    mass = ours["diagnostics"]["team"]["label_mass"]
    assert ours["answers"]["team"]["confidence"] == pytest.approx(max(team["probabilities"].values()) * mass)


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


def test_questions_with_ids_have_answers_by_their_ids(sglang):
    answer = ask(sglang, "/v1/decisions", input="Broken.", questions=WITH_IDS).json()
    assert (answer["object"], answer["prompt_format_version"]) == ("decisions", 1)
    team, angry, damage = (answer["answers"][name] for name in ("team", "angry", "damage"))
    assert list(team["probabilities"]) == ["a", "b"]
    assert list(angry["probabilities"]) == ["yes", "no"]
    assert "choice" not in angry
    assert math.isclose(damage["score"], damage["probabilities"]["1"])
    for found in (team, angry, damage):
        assert math.isclose(sum(found["probabilities"].values()), 1)
        assert 0 < found["label_mass"] <= 1
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 3


def test_a_temperature_flattens_the_probabilities_but_not_their_mass(sglang):
    found = [
        ask(sglang, "/v1/decisions", input="Broken.", questions=WITH_IDS[:1], temperature=heat).json()
        for heat in (1, 2)
    ]
    one, two = (answer["answers"]["team"] for answer in found)
    ratio = [math.log(answer["probabilities"]["a"] / answer["probabilities"]["b"]) for answer in (one, two)]
    assert ratio[0] == pytest.approx(2 * ratio[1])
    assert one["label_mass"] == pytest.approx(two["label_mass"])


def test_prompt_ids_are_returned_if_they_are_requested(sglang):
    asked = {"input": "Broken.", "questions": WITH_IDS[:1]}
    found = ask(sglang, "/v1/decisions", **asked, return_prompt_token_ids=True).json()["answers"]["team"]
    assert len(found["label_token_ids"]) == 2
    logprobs = loopback.post(
        f"{sglang}/generate",
        json={
            "input_ids": found["prompt_token_ids"],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "token_ids_logprob": found["label_token_ids"],
        },
    ).json()["meta_info"]["output_token_ids_logprobs"][0]
    mass = sum(math.exp(entry[0]) for entry in logprobs)
    assert found["label_mass"] == pytest.approx(mass)
    assert found["probabilities"]["a"] == pytest.approx(math.exp(logprobs[0][0]) / mass)


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


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"questions": [{"id": "a", "type": "choice", "question": "?"}]}, "two different options"),
        ({"questions": [{"id": "a", "type": "score", "question": "?", "levels": ["x"]}]}, "different levels"),
        ({"questions": [WITH_IDS[1], WITH_IDS[1]]}, "the same id"),
        ({"questions": [{"type": "yes_no", "question": "?"}]}, "id"),
        ({"questions": WITH_IDS, "prompt_format_version": 2}, "this server has version 1"),
        ({"questions": WITH_IDS, "temperature": 0}, "temperature"),
    ],
)
def test_impossible_questions_with_ids_are_refused(body, words, sglang):
    refused = ask(sglang, "/v1/decisions", input="x", **body)
    assert (refused.status_code, words in refused.text) == (400, True)
