"""No request fails the server: some of those that `python -m proofs.fuzz_doors` makes."""

from __future__ import annotations

import pytest

pytest.importorskip("schemathesis")

from proofs.fuzz_doors import fuzz

DOORS = {
    "sglang": ("/generate", "/tokenize", "/abort_request"),
    "vllm": ("/v1/completions", "/inference/v1/generate"),
}


@pytest.mark.parametrize("dialect", DOORS)
def test_no_request_fails_the_server(dialect):
    statuses = fuzz(dialect, 3, only=DOORS[dialect])
    assert {path for path, _ in statuses} == set(DOORS[dialect])
    assert {200, 400} <= {status for _, status in statuses}


def test_a_failure_is_found(monkeypatch):
    monkeypatch.setattr("tokenwire_reference.doors.tokenization.template_ids", None)
    with pytest.raises(AssertionError, match="was answered with"):
        fuzz("sglang", 80, only=("/tokenize",))
