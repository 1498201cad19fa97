"""SGLang's gateways in front of two replicas of the reference: what they pass on, and what they lose.

A difference that is known is pinned here, with its reason, for the versions of `constraints/interop.txt`.
"""

from __future__ import annotations

import json
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from programs import MODELS, answers, free_port, program
from suite_report import AS_SGLANG, DIALECTS, Report

from tokenwire.requirement import load_requirements

MODEL = str(MODELS / "tiny-qwen2")
IDS = [73, 39, 78, 220, 112, 31, 66, 205, 97, 154, 18, 243]
REPLICAS = 2


@dataclass(frozen=True)
class Seen:
    """A violation that is known: why, and an exchange of the suite that shows it, or a folder of such."""

    why: str
    exchange: str


@dataclass(frozen=True)
class Gateway:
    """A gateway as a user gets it, and how it is known to differ from a worker."""

    package: str
    version: str
    module: str
    """Run by its module: both packages bring a script by the name of `smg`."""
    violated: Mapping[str, Seen]
    """Requirements that hold for a worker and not through the gateway."""
    remarked: Mapping[str, Seen]
    """The same of those that say SHOULD."""
    lost: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """JSON paths of a worker's answer that do not reach the client, by the label of the request."""
    refused: frozenset[str] = frozenset()
    """Labels of requests that a worker answers and the gateway refuses: ids are no prompt to it."""
    perhaps: Mapping[str, str] = field(default_factory=dict)
    """Requirements that some runs see violated and others do not, each with the reason."""


_INTERVAL = "sampling_params are read into a type that has no stream_interval, so the worker never sees it"
_NO_PROMISE = f"{_INTERVAL}; no family promises it of a gateway, and no client breaks"
_BIAS = "sampling_params are read into a type that has no logit_bias, whatever ids it names"
_NO_IDS = "completions take no ids as a prompt, where the worker does"
_PLAIN_TEXT = "a body of /generate that does not fit the gateway's type is refused in plain text"
_OWN_REFUSAL = f"{_PLAIN_TEXT}, with status 422 where the worker says 400 and why"
_TITO = "the request is read into a type without the token-in-token-out fields, so the worker never sees them"
_SALT = "a body of /generate is read into a type without cache_salt, so the worker never sees it"
_MESSAGES = f"{_TITO}: chat answers the messages, whatever the input_ids"

SGLANG_ROUTER = Gateway(
    "sglang-router",
    "0.3.2",
    "sglang_router",
    violated={
        "stream-is-legal-delivery": Seen(_INTERVAL, "sglang-generate/long-output/interval-60"),
        "wrong-types-refused": Seen(
            f"{_INTERVAL}: not even a text", "sglang-generate/wrong-types/stream_interval-0"
        ),
        "logit-bias-is-kept": Seen(_BIAS, "sglang-generate/sampling-fields/forced"),
        "refusal-is-json": Seen(_PLAIN_TEXT, "sglang-generate/malformed-ids/string"),
        "asked-or-refused": Seen(_TITO, "sglang-generate/turns/turn-1"),
        "empty-input-ids-refused": Seen(_MESSAGES, "sglang-chat/malformed-ids/empty"),
        "choices-complete": Seen(_MESSAGES, "sglang-chat/malformed-ids/empty-in-a-batch"),
        "malformed-input-ids-refused": Seen(_MESSAGES, "sglang-chat/malformed-ids/string"),
        "unknown-prompt-ids-refused": Seen(_MESSAGES, "sglang-chat/unknown-ids/prompt-"),
        "prompt-tokens-count-the-input-ids": Seen(
            f"{_TITO}: chat runs the messages instead of the input_ids", "sglang-chat/chat-ids/shorter"
        ),
        "request-id-is-the-clients": Seen(
            "chat knows no rid: the worker makes one up", "sglang-chat/id-in-use/"
        ),
        "continuous-usage-in-every-event": Seen(
            "stream_options are read into a type that has only include_usage", "sglang-chat/usage/everywhere"
        ),
        "prompt-ids-in-every-choice": Seen(_TITO, "sglang-generate/samples/whole"),
        "same-ids-on-every-endpoint": Seen(_MESSAGES, "sglang-chat/stop-around-the-budget/unstopped"),
        "gateway-keeps-the-status": Seen(f"{_TITO}, and cannot refuse them", "sglang-chat/gateway/words-"),
        "gateway-keeps-the-ids": Seen(_BIAS, "sglang-generate/gateway/biased-whole"),
        "gateway-keeps-the-finish": Seen(f"{_BIAS}: no stop comes", "sglang-generate/gateway/stop-id-whole"),
        "gateway-keeps-the-counts": Seen(f"{_BIAS}: no stop comes", "sglang-generate/gateway/stop-id-whole"),
        "gateway-keeps-every-field": Seen(_TITO, "sglang-generate/gateway/ids-prompt-ids-whole"),
        "gateway-keeps-the-text": Seen(_MESSAGES, "sglang-chat/gateway/ids-whole"),
        "gateway-keeps-the-series": Seen(_MESSAGES, "sglang-chat/gateway/ids-logprobs-whole"),
    },
    remarked={
        "gateway-keeps-the-interval": Seen(_NO_PROMISE, "sglang-generate/gateway/interval-8"),
        "unknown-parameter-ids-refused": Seen(_BIAS, "sglang-generate/unknown-ids/bias-negative"),
        "gateway-keeps-the-reason": Seen(_OWN_REFUSAL, "sglang-generate/gateway/refused-"),
        "refusals-have-one-shape": Seen(
            "the gateway's own refusals say why elsewhere than the worker's",
            "sglang-chat/refused-late/grammar",
        ),
    },
    lost={
        "generate": frozenset({"/prompt_token_ids"}),
        "generate-stream": frozenset({"/prompt_token_ids"}),
        "chat-ids": frozenset(
            {"/choices/*/prompt_token_ids", "/choices/*/response_token_ids", "/choices/*/meta_info"}
        ),
    },
    refused=frozenset({"completions-ids"}),
    perhaps={
        "interval-is-kept": f"{_INTERVAL}; judged only where a coalescing stream seems to keep its interval",
        "cached-tokens-keep-to-their-key": f"{_SALT}; seen where one replica gets both salts",
    },
)
SMG = Gateway(
    "smg",
    "1.13.0",
    "smg",
    violated={
        "interval-is-kept": Seen(
            f"{_INTERVAL}; /get_server_info tells the worker's own interval",
            # Which of the intervals is kept by chance hangs on how many events coalesce.
            "sglang-generate/long-output/interval-",
        ),
        "stream-is-legal-delivery": Seen(_INTERVAL, "sglang-generate/long-output/interval-60"),
        "wrong-types-refused": Seen(
            f"{_INTERVAL}: not even a text", "sglang-generate/wrong-types/stream_interval-0"
        ),
        "logit-bias-is-kept": Seen(_BIAS, "sglang-generate/sampling-fields/forced"),
        "refusal-is-json": Seen(_PLAIN_TEXT, "sglang-generate/malformed-ids/string"),
        "gateway-keeps-the-status": Seen(_NO_IDS, "sglang-completions/gateway/ids-whole"),
        "gateway-keeps-the-ids": Seen(_BIAS, "sglang-generate/gateway/biased-whole"),
        "gateway-keeps-the-text": Seen(_BIAS, "sglang-generate/gateway/biased-whole"),
        "gateway-keeps-the-finish": Seen(f"{_BIAS}: no stop comes", "sglang-generate/gateway/stop-id-whole"),
        "gateway-keeps-the-counts": Seen(f"{_BIAS}: no stop comes", "sglang-generate/gateway/stop-id-whole"),
        "gateway-keeps-every-field": Seen(f"{_BIAS}: no stop comes", "sglang-generate/gateway/stop-id-whole"),
    },
    remarked={
        "gateway-keeps-the-interval": Seen(_NO_PROMISE, "sglang-generate/gateway/interval-8"),
        "unknown-parameter-ids-refused": Seen(_BIAS, "sglang-generate/unknown-ids/bias-negative"),
        "gateway-keeps-the-reason": Seen(_OWN_REFUSAL, "sglang-generate/gateway/refused-"),
        "refusals-have-one-shape": Seen(
            "the gateway's own refusals say why elsewhere than the worker's", "sglang-chat/"
        ),
    },
    refused=frozenset({"completions-ids"}),
)


@dataclass(frozen=True)
class Routed:
    """A gateway that runs, and its workers; with the first of them it is compared."""

    gateway: Gateway
    url: str
    workers: tuple[str, ...]

    @property
    def worker(self) -> str:
        return self.workers[0]


def launched(gateway: Gateway, workers: Sequence[str], servers: ExitStack, home: Path) -> str:
    """Start a gateway before these workers; its URL."""
    port = free_port()
    command = [sys.executable, "-m", gateway.module, "launch", "--policy", "round_robin"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", *workers]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    url = f"http://127.0.0.1:{port}"
    running = servers.enter_context(program(command, home))
    running.until(answers(f"{url}/health"))
    running.until(lambda: httpx.get(f"{url}/readiness").json().get("healthy_workers") == len(workers))
    return url


@pytest.fixture(scope="module", params=[SGLANG_ROUTER, SMG], ids=lambda gateway: gateway.package)
def routed(
    request: pytest.FixtureRequest,
    serve_reference: Callable[[tuple[str, ...]], AbstractContextManager[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Routed]:
    """The gateway, before two replicas that differ in nothing."""
    gateway: Gateway = request.param
    with ExitStack() as servers:
        flags = ("--model", MODEL, "--enable-metrics")
        workers = tuple(servers.enter_context(serve_reference(flags)) for _ in range(REPLICAS))
        url = launched(gateway, workers, servers, tmp_path_factory.mktemp("home"))
        yield Routed(gateway, url, workers)


def test_the_pins_are_of_this_version(routed: Routed) -> None:
    assert version(routed.gateway.package) == routed.gateway.version


def generate(url: str, **fields: Any) -> Any:
    body = {
        "input_ids": IDS,
        "sampling_params": {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True},
        **fields,
    }
    answer = httpx.post(f"{url}/generate", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


def requests_ended(worker: str) -> float:
    """How many requests a replica counts."""
    (line,) = re.findall(r"^sglang:num_requests_total\{.*", httpx.get(f"{worker}/metrics").text, re.MULTILINE)
    return float(line.split()[-1])


def test_both_replicas_are_found_and_used(routed: Routed) -> None:
    listed = httpx.get(f"{routed.url}/v1/models").json()["data"]
    assert [model["id"] for model in listed] == [MODEL]
    before = list(map(requests_ended, routed.workers))
    for _ in range(4):
        generate(routed.url)
    assert all(map(operator.lt, before, map(requests_ended, routed.workers)))


@pytest.mark.parametrize(
    ("sampling", "arrives"),
    [
        ({"temperature": 1, "sampling_seed": 7}, True),
        ({"temperature": 0, "stop_token_ids": [1154]}, True),
        ({"temperature": 0, "repetition_penalty": 1.9}, True),
        ({"temperature": 0, "logit_bias": {"5": 100}}, False),  # dropped, without a word
    ],
    ids=lambda value: list(value)[-1] if isinstance(value, dict) else "",
)
def test_which_sampling_parameters_arrive(routed: Routed, sampling: dict[str, Any], arrives: bool) -> None:
    body = {"input_ids": IDS[:5], "sampling_params": {"max_new_tokens": 8, **sampling}}
    answers = [httpx.post(f"{url}/generate", json=body).json() for url in (routed.url, routed.worker)]
    assert (answers[0]["output_ids"] == answers[1]["output_ids"]) is arrives


def test_the_ids_are_those_of_a_worker(routed: Routed) -> None:
    answers = [generate(url, return_logprob=True).json() for url in (routed.url, routed.worker)]
    for name in ("output_ids", "text"):
        assert answers[0][name] == answers[1][name]
    logprobs = [item["meta_info"]["output_token_logprobs"] for item in answers]
    assert logprobs[0] == logprobs[1]


ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "generate": (
        "/generate",
        {"input_ids": IDS, "return_logprob": True, "top_logprobs_num": 2, "return_prompt_token_ids": True},
    ),
    "generate-batch": ("/generate", {"input_ids": [IDS, IDS[:3]], "return_logprob": True}),
    "generate-stream": ("/generate", {"input_ids": IDS, "stream": True, "return_prompt_token_ids": True}),
    "chat": ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 1, "n": 2}),
    "chat-stream": ("/v1/chat/completions", {"stream": True, "stream_options": {"include_usage": True}}),
    "chat-ids": (
        "/v1/chat/completions",
        {
            "input_ids": IDS,
            "return_prompt_token_ids": True,
            "return_token_ids": True,
            "return_meta_info": True,
        },
    ),
    "completions": ("/v1/completions", {"prompt": "Hi", "logprobs": 1, "return_token_ids": True}),
    "completions-ids": ("/v1/completions", {"prompt": IDS}),
    "completions-batch": ("/v1/completions", {"prompt": ["a", "b"], "n": 2}),
    "embeddings": ("/v1/embeddings", {"input": ["a", "b"]}),
}


def paths(value: Any, path: str = "") -> set[str]:
    """The JSON paths of a value, all positions of a list as one."""
    if isinstance(value, dict):
        return {path}.union(*(paths(entry, f"{path}/{key}") for key, entry in value.items()))
    if isinstance(value, list):
        return {path}.union(*(paths(entry, f"{path}/*") for entry in value))
    return {path}


def asked(url: str, label: str) -> httpx.Response:
    """The answer to one of the requests."""
    path, fields = ASKED[label]
    sampling = {"max_new_tokens": 4, "temperature": 0}
    openai = {"model": MODEL, "max_tokens": 4, "temperature": 0}
    chat = {"messages": [{"role": "user", "content": "-"}], **openai}
    common = {"/generate": {"sampling_params": sampling}, "/v1/chat/completions": chat}
    return httpx.post(url + path, json={**common.get(path, openai), **fields}, timeout=60)


def paths_of(answer: httpx.Response) -> set[str]:
    """The JSON paths of everything that an answer holds."""
    assert answer.status_code == 200, answer.text
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return paths(answer.json())
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return set().union(*(paths(json.loads(line)) for line in lines))


@pytest.mark.parametrize("label", ASKED)
def test_what_a_worker_tells_reaches_the_client_but_for_what_is_known(routed: Routed, label: str) -> None:
    answer = asked(routed.url, label)
    direct = paths_of(asked(routed.worker, label))
    if label in routed.gateway.refused:
        assert 400 <= answer.status_code < 500
        return
    through = paths_of(answer)
    missing = direct - through
    roots = {path for path in missing if path.rpartition("/")[0].removesuffix("/*") not in missing}
    assert roots == routed.gateway.lost.get(label, frozenset())
    assert through <= direct


@pytest.fixture(scope="module")
def report(routed: Routed, check: Callable[..., Report]) -> Report:
    """What the suite finds at the gateway, beside one of its workers."""
    return check(routed.url, "--worker", routed.worker, *AS_SGLANG)


def test_the_suite_passes_through_but_for_what_is_known(routed: Routed, report: Report) -> None:
    gateway = routed.gateway
    assert report.dialects == DIALECTS
    assert report.requirements("HARNESS_ERROR") == set()
    assert report.requirements("FAIL") - gateway.perhaps.keys() == gateway.violated.keys()
    assert report.requirements("WARN") - report.requirements("FAIL") == gateway.remarked.keys()
    assert len(report.requirements("PASS")) >= 50


def test_what_is_known_is_seen_where_it_is_known_to_be(routed: Routed, report: Report) -> None:
    known = {**routed.gateway.violated, **routed.gateway.remarked}
    unseen = {
        name: seen.exchange
        for name, seen in known.items()
        if not any(place["exchange"].startswith(seen.exchange) for place in report.evidence(name))
    }
    assert unseen == {}


def test_what_a_gateway_owes_its_worker_is_judged_by_the_worker(report: Report) -> None:
    owed = {row.id for row in load_requirements().values() if row.oracle == "across-targets"}
    assert owed
    assert owed <= report.requirements("PASS") | report.requirements("FAIL") | report.requirements("WARN")


def test_a_worker_conforms_where_its_gateway_does_not(routed: Routed, check: Callable[..., Report]) -> None:
    assert check(routed.worker).requirements("FAIL") == set()


@pytest.mark.parametrize(
    ("gateway", "explained"),
    [(SGLANG_ROUTER, "WARN"), (SMG, "PASS")],
    ids=lambda given: given.package if isinstance(given, Gateway) else "",
)
def test_a_worker_that_breaks_off_is_shown(
    gateway: Gateway,
    explained: str,
    serve_reference: Callable[[tuple[str, ...]], AbstractContextManager[str]],
    check: Callable[..., Report],
    tmp_path: Path,
) -> None:
    with ExitStack() as servers:
        worker = servers.enter_context(serve_reference(("--model", MODEL)))
        port = free_port()
        cut = [sys.executable, "-m", "tokenwire", "cut", "--target", worker, "--listen", f"127.0.0.1:{port}"]
        behind = f"http://127.0.0.1:{port}"
        (tmp_path / "proxy").mkdir()
        servers.enter_context(program(cut, tmp_path / "proxy")).until(answers(f"{behind}/health"))
        url = launched(gateway, [behind], servers, tmp_path)
        report = check(url, "--worker", behind, "--scenario", "cut-worker")
    assert "gateway-shows-a-cut" in report.requirements("PASS")
    assert "gateway-explains-a-cut" in report.requirements(explained)
