"""SGLang's router before a reference that does all by itself, and before two that share each request.

What the router itself loses in both modes, `test_gateways` pins. Here both deployments stand behind it, and
what one server passes, two have to pass; what the router loses in this mode alone is pinned by name.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from programs import MODELS, answers, free_port, program
from suite_report import AS_SGLANG, DIALECTS, Report
from test_gateways import SGLANG_ROUTER, Seen

from tokenwire.judging.verdict import ExitStatus

pytest.importorskip("sglang_router", reason="the router is installed by `nox -s interop`")

FLAGS = ("--model", str(MODELS / "tiny-qwen2"), "--sampling-backend", "mirror")
IDS = [73, 39, 78, 220, 112, 31, 66, 205, 97, 154, 18, 243, 5, 6, 7, 8, 9, 10]
Start = Callable[..., str]

WITH_TWO = {
    "answer-content-type": Seen(
        "where logprobs are asked for, a whole answer is written anew from that of both servers, as bytes "
        "without a type of their own (process_non_streaming_response): application/octet-stream",
        "sglang-generate/",
    ),
    "refusal-is-json": Seen(
        "a refused stream is answered with `data: {'error': ...}` (handle_decode_error_response)",
        "sglang-completions/small-budget/0-stream",
    ),
}
"""What this version of the router breaks before two servers, by the functions of its pd_router.rs."""


@contextmanager
def router(home: Path, *workers: str) -> Iterator[str]:
    """The router as a user gets it, once it has found its workers; its URL."""
    port = free_port()
    command = [sys.executable, "-m", "sglang_router", "launch", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), *workers]
    url = f"http://127.0.0.1:{port}"
    with program(command, home) as running:
        running.until(answers(f"{url}/health"))
        running.until(answers(f"{url}/v1/models"))
        yield url


@pytest.fixture(scope="module")
def whole(start_reference: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with router(tmp_path_factory.mktemp("home"), "--worker-urls", start_reference(*FLAGS)) as url:
        yield url


@pytest.fixture(scope="module")
def apart(start_reference: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    half = (*FLAGS, "--disaggregation-mode")
    prefill = start_reference(*half, "prefill", "--disaggregation-bootstrap-port", "0")
    settings = httpx.get(f"{prefill}/server_info").json()["tokenwire_reference"]
    workers = ("--prefill", prefill, str(settings["disaggregation_bootstrap_port"]))
    workers += ("--decode", start_reference(*half, "decode"))
    with router(tmp_path_factory.mktemp("home"), "--pd-disaggregation", *workers) as url:
        yield url


def generate(url: str, status: int = 200, **fields: Any) -> httpx.Response:
    sampling = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True, **fields.pop("sampling", {})}
    body = {"input_ids": IDS, "sampling_params": sampling, **fields}
    answer = httpx.post(f"{url}/generate", json=body, timeout=60)
    assert answer.status_code == status, answer.text
    return answer


def rounded(value: Any) -> Any:
    """An answer without what changes each time, and without the last digits of its numbers."""
    if isinstance(value, dict):
        changing = {"id", "e2e_latency", "response_sent_to_client_ts"}
        return {key: rounded(inner) for key, inner in value.items() if key not in changing}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.14g}") if isinstance(value, float) else value


def test_the_pins_are_of_this_version() -> None:
    assert version(SGLANG_ROUTER.package) == SGLANG_ROUTER.version


def test_the_answer_is_that_of_one_server(whole: str, apart: str) -> None:
    """But for the last digits of logprobs, which the router reads not quite exactly, and writes anew."""
    single, pair = (generate(url, return_logprob=True, logprob_start_len=0) for url in (whole, apart))
    assert rounded(pair.json()) == rounded(single.json())
    assert pair.headers["content-type"] == "application/octet-stream"
    single, pair = (generate(url) for url in (whole, apart))
    assert {**pair.json(), "meta_info": {}} == {**single.json(), "meta_info": {}}
    assert pair.headers["content-type"] == "application/json"


def test_they_are_twins_but_for_how_the_router_writes_numbers(whole: str, apart: str, tmp_path: Path) -> None:
    """Behind a router that passes bytes on they are the same: `end_to_end/test_twin.py`."""
    command = [sys.executable, "-m", "tokenwire", "twin", "--a", whole, "--b", apart]
    ran = subprocess.run(
        [*command, "--tokens", "300", "--json", "twin.json"], cwd=tmp_path, capture_output=True, check=False
    )
    assert ran.returncode == ExitStatus.CONFORMS, ran.stdout + ran.stderr
    found = json.loads((tmp_path / "twin.json").read_text("utf-8"))
    assert found["outcome"] == "the same up to noise"
    assert 0 < found["apart"]["high"] < 1e-15
    assert found["same_answers"] == found["compared_answers"] == 3 * 8  # greedy, streamed and seeded
    assert found["agreed"] == found["tokens"] == 320


def test_the_router_quotes_the_refusal_of_a_stream_by_no_json(apart: str) -> None:
    refused = generate(apart, 400, stream=True, sampling={"regex": "("})
    assert refused.text.startswith("data: {'error': {")


def test_what_one_server_passes_two_pass(whole: str, apart: str, check: Callable[..., Report]) -> None:
    """At the endpoints that the router serves in both modes."""
    asked = ("--budget", "quick", *AS_SGLANG)
    single, pair = (check(url, *asked) for url in (whole, apart))
    assert pair.dialects == single.dialects == DIALECTS
    assert pair.requirements("HARNESS_ERROR") == set()
    assert single.requirements("PASS") - pair.requirements("PASS") == set()
    assert len(pair.requirements("PASS")) >= 100
    assert single.requirements("FAIL") <= SGLANG_ROUTER.violated.keys() | SGLANG_ROUTER.perhaps.keys()
    assert {row for row, _ in pair.failed() - single.failed()} == WITH_TWO.keys()
    unseen = {
        name
        for name, seen in WITH_TWO.items()
        if not any(place["exchange"].startswith(seen.exchange) for place in pair.evidence(name))
    }
    assert unseen == set()
