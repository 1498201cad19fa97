"""The reference runs without the package of faults, and says so where faults are wanted."""

from __future__ import annotations

import sys

import pytest

BODY = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 2}}


@pytest.fixture(autouse=True)
def _not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenwire_faults", None)


def test_a_server_runs_without_the_package(answers, call, scripted_engine):
    whole, stream, info = answers(
        scripted_engine([[75], [76]]),
        call("/generate", BODY),
        call("/generate", {**BODY, "stream": True}),
        call("/server_info", method="GET"),
    )
    assert whole.json()["output_ids"] == [75, 76]
    assert stream.content.endswith(b"data: [DONE]\n\n")
    assert info.json()["tokenwire_reference"]["faults"] == []


@pytest.mark.parametrize(
    ("dialect", "keys"), [("sglang", {"message"}), ("vllm", {"message", "type", "param", "code"})]
)
def test_without_the_package_a_request_that_names_a_fault_is_refused(
    answers, call, scripted_engine, dialect, keys
):
    path = "/generate" if dialect == "sglang" else "/v1/completions"
    named = call(path, BODY, headers={"x-tokenwire-fault": "done-missing"})
    (answer,) = answers(scripted_engine([[75]]), named, api_dialect=dialect)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert "x-tokenwire-fault is set, and faults are off" in error["message"]
    assert error.keys() == keys


def test_enabling_faults_without_the_package_fails_with_its_name(answer, scripted_engine):
    with pytest.raises(ValueError, match="need the package tokenwire_faults, which is not installed"):
        answer(scripted_engine([[75]]), "/generate", BODY, enable_faults=True)
