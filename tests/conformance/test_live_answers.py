"""What live servers answered, byte for byte: what is legal is no finding, a defect is found as what it is.

The exchanges are cut to what a finding rests on: long prompts and fields that no check reads are left out.
"""

from __future__ import annotations

from typing import Any

import pytest
from control_calls import abort
from item_answers import responded
from item_pairs import LEGAL
from live_captures import judged, live_run, verdict
from test_checks_pairs import observe
from wire_answers import DONE, answered

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.ask import Ask
from tokenwire.checks.check import Target
from tokenwire.checks.evidence import Observation
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Stream
from tokenwire.target.advertised import Advertised
from tokenwire.wire.event_stream import stray_line
from tokenwire.wire.exchange import HttpRequest


def violated(requirement: str, subject: Any, target: Target | None = None) -> list[Observation]:
    return [seen for seen in observe(requirement, subject, target) if not seen.holds]


# SGLang 0.5.23.

BORDER = {"input_ids": [10] * 506, "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}}
BEYOND = {
    "type": "abort",
    "message": "Input length (506 tokens) exceeds the maximum allowed length (506 tokens).",
    "status_code": 400,
    "err_type": "BadRequestError",
}


FINISHED = {"id": "f", "finish_reason": {"type": "length", "length": 1}, "completion_tokens": 1}


def test_a_finish_that_aborts_with_status_400_is_a_refusal() -> None:
    """A stream refused at admission carries a token that no model made, and the refusal beside it."""
    bogus = {"id": "36", "finish_reason": BEYOND, "prompt_tokens": 1, "completion_tokens": 1}
    event = {"text": " R", "output_ids": [775], "meta_info": bogus}
    stream = answered("sglang-generate", {**BORDER, "stream": True}, event, DONE, label="506-stream")
    whole = answered("sglang-generate", BORDER, {"error": {"message": BEYOND["message"]}}, status=400)
    context = Target(advertised=Advertised(context_length=512))
    assert violated("one-length-rule", (whole, stream), context) == []
    ran = {**event, "meta_info": {**bogus, "finish_reason": {"type": "length", "length": 1}}}
    stream = answered("sglang-generate", {**BORDER, "stream": True}, ran, DONE, label="506-stream")
    assert len(violated("one-length-rule", (whole, stream), context)) == 1


def test_a_count_that_is_wrong_is_not_blamed_on_the_ids() -> None:
    """The n of -1 is answered, and counts no prompt tokens: that it was not refused is what is wrong."""
    body = {"prompt": [73, 39, 78], "max_tokens": 4, "n": -1, "return_token_ids": True}
    choice = {
        "index": 0,
        "text": "a",
        "finish_reason": "length",
        "token_ids": [5],
        "prompt_token_ids": [73, 39, 78],
    }
    usage = {"prompt_tokens": 0, "completion_tokens": 1, "total_tokens": 1}
    document = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    stream = answered("sglang-completions", body, {**document, "usage": usage})
    assert violated("impossible-values-refused", stream)
    for requirement in ("prompt-tokens-count-the-input-ids", "prompt-ids-match-their-count"):
        assert violated(requirement, stream) == []
    stream = answered("sglang-completions", {**body, "n": 1}, {**document, "usage": usage})
    assert violated("prompt-tokens-count-the-input-ids", stream)
    assert violated("prompt-ids-match-their-count", stream) == [], "the ids are those that were sent"
    found = {
        **document,
        "choices": [{**choice, "prompt_token_ids": [73, 39]}],
        "usage": {**usage, "prompt_tokens": 3},
    }
    stream = answered("sglang-completions", {**body, "n": 1}, found)
    assert violated("prompt-ids-match-their-count", stream)


ECHO = {
    "prompt": "The sea is",
    "return_token_ids": False,
    "echo": True,
    "logprobs": 1,
    "max_tokens": 2,
    "temperature": 0.0,
}


@pytest.mark.parametrize("prompt_tokens", [4, 0, 9])
def test_an_echo_is_split_by_what_its_tokens_spell_and_not_by_the_usage_beside_it(prompt_tokens: int) -> None:
    logprobs = {
        "text_offset": [-1] * 6,
        "token_logprobs": [None, -5.394946098, -13.602825164, -11.230773925, -2.183258533, -2.311936140],
        "tokens": ["The", " se", "a", " is", " ne", " can"],
        "top_logprobs": [
            None,
            {"o": -3.0},
            {" ph": -2.9},
            {" ex": -1.8},
            {" ne": -2.183258533},
            {" can": -2.31193614},
        ],
    }
    choice = {"index": 0, "text": "The sea is ne can", "logprobs": logprobs, "finish_reason": "length"}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 2, "total_tokens": prompt_tokens + 2}
    document = {"id": "d", "object": "text_completion", "choices": [choice], "usage": usage}
    stream = answered("sglang-completions", ECHO, document)
    assert stream.choices[0].series("tokens") == [" ne", " can"]
    for requirement in ("logprob-values-are-legal", "top-logprobs-belong-to-position"):
        assert observe(requirement, stream)
        assert violated(requirement, stream) == []


def _budget_2(dialect: str, text: str, *, stream: bool) -> Stream:
    """Two tokens of one prompt; the second has the text `andle`."""
    prompt = [73, 39]
    if dialect == "sglang-generate":
        body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 2, "temperature": 0.0}}
        info = {"id": "g", "finish_reason": {"type": "length", "length": 2}, "completion_tokens": 2}
        document = {"text": text, "output_ids": [5, 6], "meta_info": info}
        return answered(dialect, body, document, label="2-whole")
    body = {"prompt": prompt, "max_tokens": 2, "temperature": 0.0, "return_token_ids": True, "stream": stream}
    choice = {"index": 0, "text": text, "finish_reason": "length", "token_ids": [5, 6]}
    document = {"id": "c", "object": "text_completion", "choices": [choice]}
    return answered(dialect, body, document, *([DONE] if stream else []), label=f"2-{stream}")


def test_text_that_a_stream_lost_is_not_blamed_on_the_answer_of_another_endpoint() -> None:
    whole = _budget_2("sglang-generate", "clusiveandle", stream=False)
    lossy, other = (_budget_2("sglang-completions", "clusive", stream=stream) for stream in (True, False))
    assert violated("same-ids-on-every-endpoint", (lossy, whole)) == []
    assert len(violated("same-ids-on-every-endpoint", (other, whole))) == 1


def test_an_abort_that_ends_others_is_named_by_the_id_that_matched() -> None:
    aborts = Target(calls=(abort(0.05, "tokenwire-2a13"), abort(0.05, "tokenwire-f66")))
    info = {"id": "tokenwire-f661", "finish_reason": {"type": "abort", "message": "Abort"}}
    body = {**BORDER, "stream": True, "rid": "tokenwire-f661"}
    ended = answered("sglang-generate", body, {"text": "a", "output_ids": [5], "meta_info": info}, DONE)
    (found,) = violated("abort-spares-others", (ended,), aborts)
    assert found.message == "request 'tokenwire-f661' was ended by an abort of 'tokenwire-f66'"


# SGLang 0.5.12.post1, whose answers lost what the sampler had attached to their first tokens.


def _mirrored(*mirror: int, cached: int, rid: str) -> Stream:
    ids = [5, 6, 7, 8]
    info = {
        "id": rid,
        "finish_reason": {"type": "length", "length": 4},
        "prompt_tokens": 2,
        "completion_tokens": 4,
        "cached_tokens": cached,
        "mirror_token_id": list(mirror),
    }
    body = {"input_ids": [73, 39], "sampling_params": {"max_new_tokens": 4, "temperature": 0.0}}
    return answered(
        "sglang-generate", body, {"text": "abcd", "output_ids": ids, "meta_info": info}, label=rid
    )


def test_a_series_that_lost_entries_is_not_held_against_another_answer() -> None:
    lost, whole = _mirrored(8, cached=0, rid="lost"), _mirrored(5, 6, 7, 8, cached=1, rid="whole")
    assert violated("customized-info-whole", lost)
    assert violated("cache-changes-nothing", (lost, whole)) == []
    other = _mirrored(5, 6, 7, 9, cached=0, rid="other")
    assert violated("cache-changes-nothing", (other, whole))


# SGLang 0.5.23, Rust front end.


def _chat_chunk(entry: dict[str, Any], *top: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1795312900,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "delta": {"content": entry["token"]},
                "logprobs": {"content": [{**entry, "top_logprobs": list(top)}]},
                "finish_reason": None,
            }
        ],
    }


def _entry(token: str, logprob: float, **more: Any) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), **more}


CHAT = {"messages": [{"role": "user", "content": "-"}], "temperature": 0.0, "stream": True}
TOP_2 = {**CHAT, "logprobs": True, "top_logprobs": 2}


def test_top_logprobs_without_ids_are_matched_by_their_numbers() -> None:
    """The chosen entry has an id, those beside it have none."""
    chosen, other = _entry(" re", -3.25, token_id=587), _entry(" un", -3.5)
    stream = answered("sglang-chat", TOP_2, _chat_chunk(chosen, _entry(" re", -3.25), other), DONE)
    assert observe("top-logprobs-belong-to-position", stream)
    assert violated("top-logprobs-belong-to-position", stream) == []
    stream = answered("sglang-chat", TOP_2, _chat_chunk(chosen, other, _entry(" in", -4.0)), DONE)
    assert len(violated("top-logprobs-belong-to-position", stream)) == 1


BATCH = {"input_ids": [[1, 2], [3, 4]], "sampling_params": {"max_new_tokens": 4, "n": 1}, "stream": True}


def _refused_prompt(index: int) -> dict[str, Any]:
    return {"error": {"message": "token id -1 is out of range", "code": 400}, "index": index}


def test_each_refused_prompt_of_a_batch_has_its_own_error_event() -> None:
    stream = answered("sglang-generate", BATCH, _refused_prompt(0), _refused_prompt(1), DONE)
    assert len(observe("stream-errors-are-final", stream)) == 2
    assert violated("stream-errors-are-final", stream) == []
    going_on = {"index": 0, "text": "a", "output_ids": [5], "meta_info": {"id": "x", "finish_reason": None}}
    for event in (going_on, _refused_prompt(0), {"error": {"message": "all of it", "code": 500}}):
        stream = answered("sglang-generate", BATCH, _refused_prompt(0), _refused_prompt(1), event, DONE)
        assert violated("stream-errors-are-final", stream)
    whole_stream = {"error": {"message": "worker died", "code": 500}}
    stream = answered("sglang-generate", BATCH, whole_stream, _refused_prompt(1), DONE)
    assert len(violated("stream-errors-are-final", stream)) == 1


def test_a_refusal_in_the_place_of_a_prompt_is_no_missing_choice() -> None:
    fine = {"text": "a", "output_ids": [5], "meta_info": {"id": "x", "finish_reason": {"type": "length"}}}
    error = {"error": {"message": "token id -1 is out of range", "code": 400}}
    body = {**BATCH, "stream": False}
    assert violated("choices-complete", answered("sglang-generate", body, [fine, error])) == []
    assert violated("choices-complete", answered("sglang-generate", body, [error, error])) == []
    assert violated("choices-complete", answered("sglang-generate", body, [fine]))


def test_a_stop_that_ended_a_choice_did_so_though_its_text_was_not_kept() -> None:
    """Completions ignores that the stop string was to be kept."""

    def completed(text: str, finish: str, **stop: Any) -> Stream:
        body = {"prompt": [1, 2], "max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
        if finish == "stop":
            body |= {"stop": ["lusiv"], "no_stop_trim": True}
        choice = {"index": 0, "text": text, "finish_reason": finish, **stop}
        return answered("sglang-completions", body, {"id": "c", "choices": [choice]}, label=finish)

    free = completed("exclusive have alips and more", "length", matched_stop=None)
    cut = completed("exc", "stop", matched_stop="lusiv")
    assert violated("stop-string-ends-generation", (free, cut)) == []
    assert violated("kept-stop-ends-the-text", cut)
    assert violated("stop-string-ends-generation", (free, completed("exc", "stop", matched_stop=None))) == []
    gone_on = completed("exclusive have alips and more", "stop", matched_stop="lusiv")
    assert violated("stop-string-ends-generation", (free, gone_on))


def test_chat_that_ignores_its_ids_is_the_one_that_differs() -> None:
    """It answered the template of its one message, 12 tokens, though 506 ids stood beside that."""
    asked = load_dialects()["sglang-chat"].render(Ask(input_ids=((10,) * 506,), max_new_tokens=1))
    assert isinstance(asked, HttpRequest)
    chat = answered("sglang-chat", dict(asked.body), message("length", content="a"))
    whole = answered("sglang-generate", BORDER, {"error": {"message": BEYOND["message"]}}, status=400)
    context = Target(advertised=Advertised(context_length=512))
    (found,) = violated("one-length-rule", (chat, whole), context)
    assert found.place.exchange == "sglang-chat/one/one"
    ids = answered(
        "sglang-generate", BORDER, {"text": "b", "output_ids": [5], "meta_info": FINISHED}, label="ids"
    )
    (found,) = violated("same-ids-on-every-endpoint", (chat, ids))
    assert found.place.exchange == "sglang-chat/one/one"


LONG = {
    "input_ids": [73, 39],
    "sampling_params": {"max_new_tokens": 440, "temperature": 0.0, "ignore_eos": True},
}
GONE = {"message": "client disconnected", "code": 499}


def test_what_an_abort_ended_is_neither_a_refusal_nor_the_good_request_after_one() -> None:
    """The aborted whole answer came back with status 499, the stream beside it ended in an error event."""
    event = {"text": "a", "output_ids": [5], "meta_info": {"id": "t-beside", "completion_tokens": 1}}
    finished = {
        **event,
        "meta_info": {**event["meta_info"], "finish_reason": {"type": "length", "length": 1}},
    }
    before = answered("sglang-generate", LONG, finished, label="undisturbed")
    whole = answered(
        "sglang-generate", {**LONG, "rid": "t-whole"}, {"error": GONE}, status=499, label="whole"
    )
    beside = {**LONG, "rid": "t-beside", "stream": True}
    beside_stream = answered("sglang-generate", beside, event, {"error": GONE}, DONE, label="beside")
    aborts = Target(calls=(abort(0.1, "t-whole"), abort(0.1, "t-beside")))
    assert violated("refused-request-harms-nobody", (before, whole, beside_stream), aborts) == []
    refused = answered("sglang-generate", LONG, {"error": GONE | {"code": 400}}, status=400, label="bad")
    after = answered("sglang-generate", beside, event, {"error": GONE}, DONE, label="beside", seconds=1.0)
    assert len(violated("refused-request-harms-nobody", (before, refused, after))) == 1


# vLLM 0.32.0.

COMPLETION = {
    "model": "tiny",
    "return_token_ids": True,
    "prompt": [180, 238],
    "logprobs": 2,
    "max_tokens": 2,
    "temperature": 0.0,
}


def test_two_tokens_that_share_a_key_of_the_likeliest_are_called_so() -> None:
    """The sampled token has no text, as the runner-up has, whose logprob took its place in the object."""
    logprobs = {
        "text_offset": [31, 33],
        "token_logprobs": [-3.9235575199127197, -3.9225857257843018],
        "tokens": ["LI", ""],
        "top_logprobs": [{"LI": -3.9235575199127197, " ne": -4.312911510467529}, {"": -4.51516056060791}],
    }
    choice = {
        "index": 0,
        "text": "LI",
        "logprobs": logprobs,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": [971, 149],
    }
    stream = answered("vllm-completions", COMPLETION, {"id": "cmpl-b", "choices": [choice]})
    (found,) = violated("top-logprobs-belong-to-position", stream)
    assert found.message == (
        "position 1 of top_logprobs gives '' another logprob than the sampled token's -3.9225857257843018: "
        "two tokens share a key"
    )


NAMED = {
    "model": "tiny",
    "token_ids": [73, 39],
    "sampling_params": {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True},
    "request_id": "tokenwire-a9619a5e-stalled",
    "stream": True,
}


def test_a_request_is_aborted_by_the_id_that_its_answer_carries() -> None:
    def event(*ids: int, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "token_ids": list(ids), "finish_reason": finish, "stop_reason": None}
        return {"request_id": "generate-tokens-tokenwire-a9619a5e-stalled", "choices": [choice]}

    to_the_end = [event(token) for token in range(20, 27)]
    stream = answered("vllm-generate", NAMED, *to_the_end, event(27, finish="length"), DONE)
    client_id = Target(calls=(abort(0.11, "tokenwire-a9619a5e-stalled"),))
    server_id = Target(calls=(abort(0.11, "generate-tokens-tokenwire-a9619a5e-stalled"),))
    assert observe("abort-ends-the-request", stream, client_id) == []
    assert len(violated("abort-ends-the-request", stream, server_id)) == 1
    aborted = answered("vllm-generate", NAMED, *to_the_end[:3], event(23, finish="abort"), DONE)
    assert observe("abort-is-told", aborted, server_id)
    assert violated("abort-is-told", aborted, server_id) == []


def test_a_prompt_that_was_refused_for_another_reason_is_no_refusal_of_own_ids() -> None:
    """The prompt repeats itself, and happens to begin as the answer to its first half goes on."""
    body = {**COMPLETION, "logprobs": 5, "max_tokens": 4}
    choice = {"index": 0, "text": "a", "finish_reason": "length", "token_ids": [180], "stop_reason": None}
    made = answered("vllm-completions", COMPLETION, {"id": "cmpl-1", "choices": [choice]}, label="made")
    scored = {**body, "prompt": [180, 238, 180, 238], "prompt_logprobs": 5, "stream": True}
    words = {"message": "`prompt_logprobs` are not available when `stream=True`.", "code": 400}
    refused = answered("vllm-completions", scored, {"error": words}, status=400, label="slow")
    assert violated("own-ids-are-accepted", (made, refused)) == []
    plain = {**COMPLETION, "prompt": [180, 238, 180, 238]}
    refused = answered("vllm-completions", plain, {"error": words}, status=400, label="next")
    assert len(violated("own-ids-are-accepted", (made, refused))) == 1


def test_a_prompt_that_does_not_fit_the_context_is_no_refusal_of_own_ids() -> None:
    """One id, said once more than the context holds, begins as the answer to that id goes on."""
    body = {"input_ids": [73] * 4, "sampling_params": {"max_new_tokens": 4, "temperature": 0.0}}
    finish = {"type": "length", "length": 4}
    meta = {"id": "r", "finish_reason": finish, "prompt_tokens": 4, "completion_tokens": 4}
    made = answered("sglang-generate", body, {"text": "IIII", "output_ids": [73] * 4, "meta_info": meta})

    def refused(ids: int) -> Stream:
        words = {"error": {"message": "the prompt leaves no room"}}
        return answered("openai-embeddings", {"input": [[73] * ids]}, words, status=400, label=f"{ids} ids")

    result = {"object": "embedding", "index": 0, "embedding": [1.0]}
    fits = answered("openai-embeddings", {"input": [[39]]}, {"data": [result]}, label="one id")
    context = Target(advertised=Advertised(context_length=30))
    assert violated("own-ids-are-accepted", (made, fits, refused(31)), context) == []
    assert violated("own-ids-are-accepted", (made, fits, refused(513))) == []
    assert len(violated("own-ids-are-accepted", (made, fits, refused(8)))) == 1
    assert len(violated("own-ids-are-accepted", (made, fits, refused(8)), context)) == 1


# smg 1.13.0, by gRPC before vLLM.


def test_a_stop_that_is_named_elsewhere_may_have_matched() -> None:
    """`matched_stop` stands in meta_info, and the finish reason names nothing."""

    def generated(text: str, ids: list[int], finish: dict[str, Any], label: str, **more: Any) -> Stream:
        params = {"ignore_eos": True, "max_new_tokens": 12, "temperature": 0.0, **more}
        info = {"id": label, "finish_reason": finish, "prompt_tokens": 11, "completion_tokens": len(ids)}
        if finish["type"] == "stop":
            info["matched_stop"] = "s"
        body = {"text": "Tell me about the sea.", "sampling_params": params}
        document = [{"text": text, "output_ids": ids, "meta_info": info}]
        return answered("sglang-generate", body, document, label=label)

    ids = [743, 861, 541, 637, 260, 5, 550, 683, 772, 865, 599, 588]
    spoken = f'{" " * 25}speciargsix  "errorValexp ab vpy'
    free = generated(spoken, ids, {"type": "length", "length": 12}, "unstopped")
    far = generated(" " * 25, ids[:2], {"type": "stop"}, "far", stop=["s"])
    assert violated("unmatched-stop-changes-nothing", (free, far)) == []
    assert violated("stop-string-ends-generation", (free, far)) == []


# llama.cpp.


SEA = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Tell me about the sea."}],
    "temperature": 0.0,
}


def _spoken(content: str, finish: str, count: int) -> dict[str, Any]:
    return message(finish, content=content) | {
        "usage": {"completion_tokens": count, "prompt_tokens": 24, "total_tokens": 24 + count}
    }


def test_a_stop_that_no_answer_names_may_have_matched() -> None:
    unstopped = _spoken("\ufffdne########inebleĮ moduleca example break", "length", 12)
    free = answered("openai-chat", {**SEA, "max_tokens": 12}, unstopped, label="unstopped")
    far = {**SEA, "max_tokens": 12, "stop": ["e"]}
    stopped = answered("openai-chat", far, _spoken("\ufffdn", "stop", 2), label="far")
    assert violated("unmatched-stop-changes-nothing", (free, stopped)) == []
    never = answered("openai-chat", {**far, "stop": ["zz"]}, _spoken("\ufffdn", "stop", 2), label="never")
    assert violated("unmatched-stop-changes-nothing", (free, never))


BANNED = {"prompt": [73, 39], "n_predict": 1, "n_probs": 2, "temperature": 0.0, "ignore_eos": True}


def test_the_likeliest_are_listed_before_ids_are_banned() -> None:
    """With ignore_eos the end ids 0 and 2 head the list, and cannot be chosen."""
    likely = [{"id": token, "token": "", "logprob": logprob} for token, logprob in ((2, -1.25), (250, -3.5))]
    entry = {"id": 250, "token": "x", "logprob": -3.5, "top_logprobs": likely}
    document = {
        "index": 0,
        "content": "x",
        "tokens": [250],
        "stop": True,
        "stop_type": "limit",
        "tokens_predicted": 1,
        "tokens_evaluated": 2,
        "completion_probabilities": [entry],
    }
    banned = answered("llamacpp-completion", BANNED, document)
    assert observe("top-logprobs-belong-to-position", banned)
    assert violated("top-logprobs-belong-to-position", banned) == []
    free = answered("llamacpp-completion", {**BANNED, "ignore_eos": False}, document)
    assert violated("top-logprobs-belong-to-position", free)


def test_a_refusal_may_begin_with_the_name_of_the_field() -> None:
    body = {"prompt": [2**63], "n_predict": 4}
    refused = {
        "error": {"code": 400, "message": "Prompt contains invalid tokens", "type": "invalid_request_error"}
    }
    stream = answered("llamacpp-completion", body, refused, status=400)
    assert observe("refusal-names-the-value", (stream,))
    assert violated("refusal-names-the-value", (stream,)) == []


def test_a_temperature_below_zero_is_greedy_to_llama_cpp() -> None:
    body = {"prompt": [73, 39], "n_predict": 4, "temperature": -1.0}
    document = {"index": 0, "content": "x", "tokens": [7], "stop": True, "stop_type": "limit"}
    assert violated("impossible-values-refused", answered("llamacpp-completion", body, document)) == []
    no_samples = answered("openai-chat", {**WHOLE_CHAT, "temperature": -1.0}, message(content="x"))
    assert violated("impossible-values-refused", no_samples)


# OpenAI-compatible servers.

WHOLE_CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0.0}


def message(finish: str = "stop", **channels: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1795312900,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", **channels}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    }


def _with_top(*logprobs: float, chosen: float) -> Stream:
    """A chat answer of one token, with its likeliest by text."""
    top = [{"token": str(logprob), "logprob": logprob, "bytes": None} for logprob in logprobs]
    document = message("length", content="x")
    entry = {"token": "x", "logprob": chosen, "bytes": [120], "top_logprobs": top}
    document["choices"][0]["logprobs"] = {"content": [entry]}
    return answered("openai-chat", {**WHOLE_CHAT, "logprobs": True, "top_logprobs": 2}, document)


def test_the_likeliest_may_be_fewer_and_the_sampled_one_may_come_first() -> None:
    """As OpenAI and DeepSeek document for rare cases, and as gateways pass on what vLLM lists."""
    assert violated("top-logprobs-have-k", _with_top(-0.5, chosen=-0.5)) == []
    assert violated("top-logprobs-fall", _with_top(-0.5, -0.25, chosen=-0.5)) == []
    assert violated("top-logprobs-have-k", _with_top(-0.25, -0.5, -0.75, chosen=-0.25))


def test_a_penalty_that_nobody_asked_for_may_come_between_the_likeliest_and_the_choice() -> None:
    """The server's own repeat_penalty is 1.1, its logprobs are those before it; no field switches it off."""
    assert violated("top-logprobs-belong-to-position", _with_top(-0.5, -0.75, chosen=-0.75)) == []


def test_ids_where_only_texts_are_prompts_are_not_a_prompt_each() -> None:
    """The preflight asks every endpoint for ids first; a server of texts may take the list for one text."""
    choice = {"index": 0, "text": "a", "finish_reason": "length", "logprobs": None}
    body = {"model": "tiny", "prompt": [73, 39, 78, 220], "max_tokens": 4, "temperature": 0.0}
    document = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    assert violated("choices-complete", answered("openai-completions", body, document)) == []
    texts = {**body, "prompt": ["a", "b"]}
    assert violated("choices-complete", answered("openai-completions", texts, document))


@pytest.mark.parametrize("code", ["rate_limit_exceeded", None])
def test_the_code_of_an_error_is_a_word_or_null(code: str | None) -> None:
    error = {"message": "try again", "type": "server_error", "param": None, "code": code}
    opening = {
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}, "finish_reason": None}]
    }
    stream = answered("openai-chat", {**WHOLE_CHAT, "stream": True}, opening, {"error": error})
    assert observe("stream-errors-say-why", stream)
    assert violated("stream-errors-say-why", stream) == []
    without_words = answered(
        "openai-chat", {**WHOLE_CHAT, "stream": True}, opening, {"error": {"code": code}}
    )
    assert violated("stream-errors-say-why", without_words)
    elsewhere = answered("sglang-chat", {**WHOLE_CHAT, "stream": True}, opening, {"error": error})
    assert violated("stream-errors-say-why", elsewhere)


def test_a_refusal_of_the_model_stands_beside_null() -> None:
    refused = answered("openai-chat", WHOLE_CHAT, message(content=None, refusal="I can't help with that."))
    assert violated("answer-fits-schema", refused) == []
    assert violated("chat-content-never-null", refused) == []


def test_null_without_anything_beside_it_fits_the_published_schema_and_spoils_the_next_prompt() -> None:
    """A gateway before vLLM wrote null where the one token was half of a character."""
    null = answered("openai-chat", WHOLE_CHAT, message("length", content=None, refusal=None))
    assert violated("answer-fits-schema", null) == []
    assert len(violated("chat-content-never-null", null)) == 1


@pytest.mark.parametrize(("entries", "seen"), [(5, True), (4, False)])
def test_an_echo_with_no_budget_has_the_entries_of_its_prompt_alone(entries: int, seen: bool) -> None:
    """A token is made for a budget of none, and counted; the prompt alone is shown, as by vLLM 0.32.0."""
    tokens, numbers = ["T", "he", " se", "a", " is"], [None, -6.145, -7.869, -7.019, -7.309]
    found = {"text_offset": [0, 1, 3, 6, 7], "tokens": tokens, "token_logprobs": numbers}
    logprobs = {name: entry[:entries] for name, entry in found.items()} | {"top_logprobs": None}
    choice = {"index": 0, "text": "The sea is", "logprobs": logprobs, "finish_reason": "length"}
    usage = {"prompt_tokens": 5, "total_tokens": 6, "completion_tokens": 1}
    document = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    body = {"prompt": "The sea is", "echo": True, "logprobs": 2, "max_tokens": 0, "temperature": 0.0}
    stream = answered("vllm-completions", body, {**document, "usage": usage})
    assert (violated("echo-logprobs-cover-the-prompt", stream) == []) is seen
    assert violated("budget-is-kept", stream), "that is what is wrong"


def test_words_that_no_client_finds_are_named_with_the_shapes_in_which_it_would() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "model": "m"}
    refused = answered("openai-chat", body, {"detail": "There was an error parsing the body"}, status=400)
    (found,) = violated("refusal-is-json", refused)
    assert found.message == (
        "'There was an error parsing the body' does not have the shape of an error: {\"error\": "
        '{"message": …}}, {"error": …} or {"object": "error", "message": …, "code": …}'
    )
    assert found.actual == "There was an error parsing the body"


# What a parser takes out of a text, token by token.


def _pieces(*tokens: str, text: str, dialect: str = "sglang-chat") -> Stream:
    entries = [{"token": token, "logprob": -0.5, "top_logprobs": []} for token in tokens]
    shown = {"message": {"role": "assistant", "content": text}, "logprobs": {"content": entries}}
    if dialect == "sglang-completions":
        lists = {"tokens": list(tokens), "token_logprobs": [-0.5] * len(tokens)}
        shown = {"text": text, "logprobs": {**lists, "top_logprobs": None, "text_offset": [0] * len(tokens)}}
    body = {"messages": [{"role": "user", "content": "-"}], "max_completion_tokens": len(tokens)}
    document = {"id": "c", "choices": [{"index": 0, "finish_reason": "length", **shown}]}
    return answered(dialect, {**body, "logprobs": True}, document)


def test_a_marker_of_reasoning_may_be_spelled_by_several_tokens() -> None:
    """Where a grammar decides the ids, or the vocabulary has no token for it."""
    row = "tokens-of-logprobs-are-shown"
    (stream,) = live_run("router-marker-in-pieces").streams
    assert observe(row, stream.load())
    assert violated(row, stream.load()) == []
    for tokens, text in (("<", "think", ">", "ab"), "ab"), (("a", "</", "think>", "b"), "ab"):
        assert violated(row, _pieces(*tokens, text=text)) == []
        assert violated(row, _pieces(*tokens, text=text[:1])), "text behind it is lost"
        assert violated(row, _pieces(*tokens, text=text, dialect="sglang-completions")), "no parser there"
    for tokens in (("<", "b", ">"), ("<", "thin", ">"), ("think",)):
        assert violated(row, _pieces(*tokens, text="")), "that is no marker"


# Usage in the event that finishes a choice.


def _finishing(n: int, tokens: int, *, entries: int = 3, missing: bool = False) -> Stream:
    """A stream of `n` choices of three tokens, whose usage comes in the last event that finishes one."""
    body = {"messages": [{"role": "user", "content": "q"}], "max_tokens": 3, "stream": True, "logprobs": True}
    body |= {"temperature": 0, "n": n, "stream_options": {"include_usage": True}}
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    events: list[dict[str, Any]] = []
    for index in range(n):
        for nth in range(3):
            content = [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]
            logprobs = {"content": content if nth < entries else []}
            finish = "length" if nth == 2 else None
            delta: dict[str, Any] = {"content": "a"}
            told = {} if missing and index else {"logprobs": logprobs}
            choice = {"index": index, "delta": delta, "finish_reason": finish, **told}
            events.append({**head, "choices": [choice]})
    usage = {"prompt_tokens": 2, "completion_tokens": tokens, "total_tokens": tokens + 2}
    events[-1] |= {"usage": usage}
    return answered("openai-chat", body, *events, DONE, label=f"{n}")


def test_usage_beside_the_finish_counts_the_answer_and_not_the_last_tokens_of_a_choice() -> None:
    one, several = _finishing(1, 3), _finishing(7, 21)
    assert one.usage is not None
    assert violated("samples-are-asked-alike", (one, several)) == []
    assert violated("logprobs-incremental", one) == []
    assert violated("samples-are-asked-alike", (one, _finishing(7, 21, missing=True)))
    assert violated("chat-logprobs-count-the-tokens", _finishing(1, 3, entries=2))


# Sequence numbers of events.


def test_a_sequence_number_may_be_written_with_a_fraction_and_be_missing_in_an_extension() -> None:
    row, extension = "events-are-numbered", {"type": "x.trace", "note": "of this server"}
    fractions = [{**event, "sequence_number": float(event["sequence_number"])} for event in LEGAL]
    extended = [*LEGAL[:2], extension, *LEGAL[2:]]
    for legal in (fractions, extended):
        assert observe(row, responded(*legal))
        assert violated(row, responded(*legal)) == []
    numbered = [*LEGAL[:2], {**extension, "sequence_number": 7}, *LEGAL[2:]]
    bare = {name: value for name, value in LEGAL[3].items() if name != "sequence_number"}
    half = [*LEGAL[:3], {**LEGAL[3], "sequence_number": 3.5}, *LEGAL[4:]]
    true = [LEGAL[0], {**LEGAL[1], "sequence_number": True}, *LEGAL[2:]]
    for wrong, place in ((numbered, 2), ([*LEGAL[:3], bare, *LEGAL[4:]], 3), (half, 3), (true, 1)):
        assert violated(row, responded(*wrong))[0].place.event == place


# Words of findings.


def test_an_event_that_a_line_break_within_its_data_cut_is_explained() -> None:
    """Transformers serve writes an error with its line breaks into one `data` field."""
    (stream,) = live_run("hf-error-breaks-frame").streams
    (found,) = violated("events-are-json-objects", stream.load())
    assert found.message.startswith(
        "not strict JSON: Unterminated string starting at character 10; behind it, "
    )
    assert "is not a field: a line break within the data cuts it" in found.message


@pytest.mark.parametrize(
    ("event", "stray"),
    [
        (b'data: {"a": "b\nContent: c"}\n\n', 'Content: c"}'),
        (b'data: {"a":\ndata: 1}\nid: 7\n: a comment\nretry: 5\nevent: x\ndata\n\n', ""),
        (b"whatever\ndata: {}\n\n", ""),
        (b'data: {"a": 1\r\n}\r\n\r\n', "}"),
        (b"data: [\n" + b"x" * 100 + b"\n\n", "x" * 40),
    ],
    ids=["a text", "fields", "ahead of it", "CRLF", "long"],
)
def test_a_line_behind_the_data_that_is_no_field_is_found(event: bytes, stray: str) -> None:
    assert stray_line(event) == stray


def test_what_was_requested_is_named_as_the_request_names_it() -> None:
    body = {"prompt": [1, 2], "max_tokens": 1, "prompt_logprobs": 2, "logprobs": 1}
    choice = {"index": 0, "text": "a", "finish_reason": "length"}
    document = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    words = {
        seen.message for seen in violated("asked-or-refused", answered("vllm-completions", body, document))
    }
    assert "prompt_logprobs was requested, but choice 0 does not have it" in words
    assert not any("input_token_logprobs" in message for message in words)


def test_text_beside_a_count_that_stays_at_zero_did_not_come_early() -> None:
    """Litellm counts 0 tokens in each chunk: the count is what is wrong."""
    run = live_run("litellm-usage-zero")
    assert verdict(run, "script-text-so-far-is-right") is not Verdict.FAIL
    assert verdict(run, "script-counts-are-right") is Verdict.FAIL


def test_the_schema_that_is_meant_is_not_one_of_which_each_constant_is_another() -> None:
    """A chunk without `created` was told to have an empty id: that is the shape of another server's notes."""
    (found, *_) = judged(live_run("echo-taken-for-parrot"), "events-fit-schema")
    assert '"created" is a required property' in found.message
    assert "instead of ''" not in found.message
