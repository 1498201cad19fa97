"""Messages that SGLang's own processes sent to the engine, played again: each gets the outputs that it got.

A recording is the trace of one release (`tokenwire engine sglang --trace FILE`): what its tokenizer manager
sent, and what its streamer was given. The classes of the server are stand-ins here.
"""

import gzip
import json
from copy import deepcopy
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tokenwire.parrot.law import DISTANCE, Parrot
from tokenwire.parrot.vocabulary import SIZE, Vocabulary, words_of
from tokenwire_engine.engine import Engine
from tokenwire_engine.front_end import Trace
from tokenwire_engine.launch import DEFAULTS, Family
from tokenwire_engine.schedule import KEY, parse_schedule
from tokenwire_engine.sglang import STREAMERS, Scheduler, output_of

RECORDINGS = {
    path.name.removesuffix(".jsonl.gz").removeprefix("sglang-"): path
    for path in (Path(__file__).parent / "recordings").glob("sglang-*.jsonl.gz")
}
_STEPS = 1000


ENDS = words_of(Vocabulary.BYTE_LEVEL).ends


class FINISH_LENGTH(SimpleNamespace): ...  # noqa: N801  # SGLang's names


class FINISH_MATCHED_TOKEN(SimpleNamespace): ...  # noqa: N801


class FINISH_ABORT(SimpleNamespace):  # noqa: N801
    def __init__(self, *given: object) -> None:
        super().__init__(given=given)


class Req:
    """The record of a request, which ends at its budget, at an end of the text, or at an abort."""

    budget_first = False

    def __init__(self, rid: str, text: str, ids: list[int], params: Any, **options: Any) -> None:
        self.rid, self.sampling_params, self.return_logprob = rid, params, options["return_logprob"]
        self.top_logprobs_num, self.token_ids_logprob = options["top_logprobs_num"], None
        self.output_ids: list[int] = []
        self.customized_info: dict[str, list[Any]] | None = None
        self.is_retracted, self.retraction_count = False, 0
        self.to_finish: Any = None
        self.finished_reason: Any = None
        self.output_token_logprobs_val: list[float] = []
        self.output_token_logprobs_idx: list[int] = []

    def finished(self) -> bool:
        return self.finished_reason is not None

    def check_finished(self, new_accepted_len: int) -> None:
        if self.to_finish is not None:
            self.finished_reason = self.to_finish
            return
        at_budget = len(self.output_ids) >= self.sampling_params.max_new_tokens
        at_end = not self.sampling_params.ignore_eos and bool(ENDS & set(self.output_ids))
        if at_end and not (at_budget and self.budget_first):
            self.finished_reason = FINISH_MATCHED_TOKEN(given=0)
        elif at_budget:
            self.finished_reason = FINISH_LENGTH(given=0)


class BudgetFirst(Req):
    """A request of a release that looks at the budget before the end of the text."""

    budget_first = True


REQUESTS = {"0.5.12.post1": BudgetFirst, "0.5.13": BudgetFirst, "0.5.23": Req}


def collect(_: None, place: int, req: Req, result: Any) -> None:
    req.customized_info = req.customized_info or {}
    for name, values in result.customized_info.items():
        req.customized_info.setdefault(name, []).append(values[place])


class Played(Scheduler):
    """The engine as it is behind SGLang, with stand-ins for the classes of the server."""

    def __init__(self, version: str) -> None:
        self.law, self.default = Parrot(SIZE, DISTANCE), parse_schedule(DEFAULTS[Family.SGLANG])
        self.engine, self.rust, self.trace = Engine(), None, Trace(None)
        self.request_class, self.abort_class, self.collect = REQUESTS[version], FINISH_ABORT, collect
        self.io = SimpleNamespace(AbortReq=SimpleNamespace, OpenSessionReqOutput=SimpleNamespace)
        self.model_config = SimpleNamespace(hf_eos_token_id=ENDS, vocab_size=SIZE)
        self.max_req_input_len, self.tokenizer = 1 << 14, None
        self.server_args = SimpleNamespace(tokenizer_path="none", model_path="none")
        self.answers: list[Any] = []
        self.outputs: list[Any] = []
        answer = SimpleNamespace(send_output=lambda output, _: self.answers.append(vars(output)))
        self.channels = SimpleNamespace(send_to_tokenizer=answer)
        given = SimpleNamespace(
            stream_output=lambda reqs, _: self.outputs.append(deepcopy([output_of(req) for req in reqs]))
        )
        self.streamer = given

    def run_to(self, rid: str, count: int) -> None:
        """Step until a request has as many outputs as it had when it was aborted."""
        while (running := self.engine.running.get(rid)) is not None and running.given < count:
            self.step()

    def until_an_output(self) -> list[Any]:
        for _ in range(_STEPS):
            if self.outputs:
                return [self.outputs.pop(0)]
            self.step()
        return []


def message(content: dict[str, Any]) -> Any:
    fields = {name: value for name, value in content.items() if name != "class"}
    if "sampling_params" in fields:
        fields["sampling_params"] = SimpleNamespace(**fields["sampling_params"])
    return type(content["class"], (SimpleNamespace,), {})(**fields)


def named_ends(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outputs with the class of each end alone: its fields are SGLang's own."""
    return [{**one, "finished": (one["finished"] or {}).get("class")} for one in outputs]


def test_each_release_is_recorded() -> None:
    assert RECORDINGS.keys() == STREAMERS.keys()


@pytest.mark.parametrize("version", sorted(RECORDINGS))
def test_the_messages_of_a_release_get_the_outputs_that_they_got(version: str) -> None:
    lines = [json.loads(line) for line in gzip.decompress(RECORDINGS[version].read_bytes()).splitlines()]
    played, kinds, ends = Played(version), set(), set()
    for place, line in enumerate(lines):
        if (content := line.get("in")) is not None:
            kinds.add(content["class"])
            if content["class"] == "AbortReq":
                following = [one for later in lines[place:] for one in later.get("out", ())]
                played.run_to(
                    content["rid"], max((len(one["output_ids"]) for one in following[:1]), default=0)
                )
            played.handle(message(content))
            continue
        (outputs,) = played.until_an_output()
        recorded = [{**one, "logprobs": pytest.approx(one["logprobs"])} for one in named_ends(line["out"])]
        assert named_ends(outputs) == recorded
        ends |= {one["finished"] for one in recorded}
    assert {"TokenizedGenerateReqInput", "AbortReq", "OpenSessionReqInput"} <= kinds
    assert {"FINISH_LENGTH", "FINISH_ABORT", None} <= ends
    assert any("session_id" in answer for answer in played.answers)


def test_a_request_without_room_for_a_token_samples_one() -> None:
    """SGLang scores ids by such requests: without an output, a decision was an error of the server."""
    version = max(RECORDINGS)
    lines = map(json.loads, gzip.decompress(RECORDINGS[version].read_bytes()).splitlines())
    first = next(
        line["in"] for line in lines if line.get("in", {}).get("class") == "TokenizedGenerateReqInput"
    )
    played = Played(version)
    params = {**first["sampling_params"], "max_new_tokens": 0}
    played.add(message({**first, "sampling_params": params, "return_logprob": True}))
    (req,) = (running.request for running in played.engine.requests)
    played.step()
    assert req.finished()
    assert (len(req.output_ids), req.output_token_logprobs_val) == (1, [])


class Thinking(Req):
    """A request that notes which ids are counted as reasoning."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.require_reasoning = options["require_reasoning"]
        self.counted: list[tuple[list[int], Any]] = []

    def update_reasoning_tokens(self, ids: list[int], end: Any) -> None:
        self.counted.append((ids, end))


@pytest.mark.parametrize("thinks", [True, False])
def test_ids_are_given_to_the_counter_of_reasoning(thinks: bool) -> None:
    """SGLang's scheduler counts them, so the engine in its place has to."""
    version = max(RECORDINGS)
    lines = map(json.loads, gzip.decompress(RECORDINGS[version].read_bytes()).splitlines())
    first = next(
        line["in"] for line in lines if line.get("in", {}).get("class") == "TokenizedGenerateReqInput"
    )
    played = Played(version)
    played.request_class, played.end_of_reasoning = Thinking, [5, 6]
    played.add(message({**first, "require_reasoning": thinks}))
    (req,) = (running.request for running in played.engine.requests)
    for _ in range(_STEPS):
        if req.finished():
            break
        played.step()
    counted = [token for ids, end in req.counted for token in ids if end == [5, 6]]
    assert counted == (list(req.output_ids) if thinks else [])
    assert req.output_ids


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"custom_params": {KEY: "error=2:503"}}, HTTPStatus.SERVICE_UNAVAILABLE),
        ({"custom_params": {KEY: "error=2"}}, HTTPStatus.INTERNAL_SERVER_ERROR),
        ({"custom_params": {KEY: "nonsense"}}, HTTPStatus.BAD_REQUEST),
    ],
    ids=["scheduled", "scheduled-without-a-status", "refused"],
)
def test_a_failure_has_a_status_of_the_class_that_front_ends_look_for(
    change: dict[str, Any], status: HTTPStatus
) -> None:
    """SGLang's streams of chat take a number of another class for an abort by the client."""
    version = max(RECORDINGS)
    lines = map(json.loads, gzip.decompress(RECORDINGS[version].read_bytes()).splitlines())
    first = next(
        line["in"] for line in lines if line.get("in", {}).get("class") == "TokenizedGenerateReqInput"
    )
    played = Played(version)
    played.add(message({**first, "sampling_params": {**first["sampling_params"], **change}}))
    (req,) = (running.request for running in played.engine.requests)
    for _ in range(_STEPS):
        if req.finished():
            break
        played.step()
    _, given, _ = req.finished_reason.given
    assert given == status
    assert isinstance(given, HTTPStatus)


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_pause_keeps_what_runs(mode: str) -> None:
    version = max(RECORDINGS)
    lines = map(json.loads, gzip.decompress(RECORDINGS[version].read_bytes()).splitlines())
    first = next(
        line["in"] for line in lines if line.get("in", {}).get("class") == "TokenizedGenerateReqInput"
    )
    played = Played(version)
    played.add(message({**first, "rid": "runs"}))
    played.step()
    (running,) = played.engine.requests
    given = running.given
    assert given
    played.handle(message({"class": "PauseGenerationReqInput", "mode": mode}))
    assert played.is_idle
    for _ in range(3):
        played.step()
    assert running.given == given
    played.handle(message({"class": "ContinueGenerationReqInput"}))
    assert not played.is_idle
    played.step()
    assert running.given > given
