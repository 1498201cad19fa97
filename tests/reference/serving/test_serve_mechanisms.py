"""The engine's mechanisms as a client of a real server sees them: by their flags, on the wire."""

from __future__ import annotations

import json
import os
from itertools import chain

import loopback
from forked_program import forked

PROMPT = list(range(40, 110))


def generate(url, **body):
    sampling = {"temperature": 0, "max_new_tokens": 30, **body.pop("sampling_params", {})}
    return loopback.post(f"{url}/generate", json={**body, "sampling_params": sampling})


def stream(url, **body):
    """The events of a stream, without `[DONE]`."""
    parts = generate(url, stream=True, **body).text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def test_a_script_is_followed_step_by_step(start_reference, tmp_path):
    path = tmp_path / "script.json"
    path.write_text("[[50, 51, 52], [53]]")
    url = start_reference(
        "--model", "builtin:scripted", "--script", str(path), "--incremental-streaming-output"
    )
    events = [event["output_ids"] for event in stream(url, input_ids=[40])]
    assert events == [[50, 51, 52], [53], [2]]
    sampling = {"custom_params": {"script": [[60, 61], {"error": "out of luck"}]}}
    *_, last = stream(url, input_ids=[40], sampling_params=sampling)
    assert "out of luck" in json.dumps(last)
    refused = generate(url, input_ids=[40], sampling_params={"custom_params": {"script": [[99999]]}})
    assert refused.status_code == 400
    assert "script[0].ids is [99999]" in refused.text
    text = {"messages": [{"role": "user", "content": "Hi"}], "custom_params": {"script": ["Yes."]}}
    for path, body in (
        ("chat/completions", text),
        ("completions", text | {"prompt": "Hi"}),
        ("responses", text | {"input": "Hi"}),
        ("messages", text | {"max_tokens": 9}),
    ):
        assert '"Yes."' in loopback.post(f"{url}/v1/{path}", json={"model": "m", **body}).text
    assert loopback.get(f"{url}/health").status_code == 200


def test_retraction_shows_in_its_count_alone(start_reference):
    ask = {"input_ids": PROMPT, "return_logprob": True}
    calm = generate(start_reference(), **ask).json()
    disturbed = generate(start_reference("--test-retract-interval", "3"), **ask).json()
    assert calm["meta_info"]["num_retractions"] == 0
    assert disturbed["meta_info"]["num_retractions"] > 3
    assert disturbed["output_ids"] == calm["output_ids"]
    assert disturbed["meta_info"]["output_token_logprobs"] == calm["meta_info"]["output_token_logprobs"]


def test_drafts_come_as_steps_of_several_tokens(start_reference):
    url = start_reference(
        *(
            "--speculative-algorithm",
            "NGRAM",
            "--incremental-streaming-output",
            "--sampling-backend",
            "mirror",
        )
    )
    events = stream(url, input_ids=[50] * 20, sampling_params={"logit_bias": {"50": 1000}})
    assert max(len(event["output_ids"]) for event in events) > 2
    assert list(chain(*(event["output_ids"] for event in events))) == [50] * 30
    for event in events:
        assert event["meta_info"]["mirror_token_id"] == event["output_ids"]
    assert loopback.get(f"{url}/server_info").json()["speculative_algorithm"] == "NGRAM"
    *earlier, last = (spec_fields(event) for event in events)
    assert not any(earlier)
    # The prefill and five decodes give five tokens each: four drafts, all right, and one more.
    assert last == {
        "spec_accept_rate": 1.0,
        "spec_accept_length": 5.0,
        "spec_num_correct_drafts": 24,
        "spec_num_proposed_drafts": 24,
        "spec_verify_ct": 6,
        "spec_correct_drafts_histogram": [0, 0, 0, 0, 6],
    }


def spec_fields(answer):
    return {key: value for key, value in answer["meta_info"].items() if key.startswith("spec_")}


def test_the_counts_of_drafts_add_up(start_reference):
    url = start_reference("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "3")
    varied = {"logit_bias": {"5": 14.0, "6": 14.0}, "max_new_tokens": 60}
    answer = generate(url, input_ids=PROMPT, sampling_params=varied).json()
    fields = spec_fields(answer)
    steps, histogram = fields["spec_verify_ct"], fields["spec_correct_drafts_histogram"]
    correct = sum(right * count for right, count in enumerate(histogram))
    assert sum(histogram) == steps
    assert 0 < correct == fields["spec_num_correct_drafts"] < fields["spec_num_proposed_drafts"]
    # The prefill drafted nothing, so it is no step that verified, and its token is nobody's.
    assert answer["meta_info"]["completion_tokens"] - steps - correct in {0, 1}
    assert fields["spec_accept_length"] == 60 / steps
    assert fields["spec_accept_rate"] == correct / fields["spec_num_proposed_drafts"]
    alone = generate(url, input_ids=[300, 301], sampling_params={"max_new_tokens": 1}).json()
    assert spec_fields(alone) == {}
    undrafted = generate(url, input_ids=[300, 301], sampling_params={"max_new_tokens": 2}).json()
    assert spec_fields(undrafted) == {"spec_correct_drafts_histogram": [1]}
    assert spec_fields(generate(start_reference(), input_ids=PROMPT).json()) == {}


def test_each_tier_of_the_cache_is_told(start_reference, tmp_path):
    url = start_reference(
        *("--max-total-tokens", "128", "--enable-hierarchical-cache", "--hicache-size-pages", "6"),
        *("--hicache-storage-backend", "file", "--hicache-storage-dir", str(tmp_path)),
    )
    cold = generate(url, input_ids=PROMPT).json()
    generate(url, input_ids=range_of(120))
    generate(url, input_ids=range_of(300))
    warm = generate(url, input_ids=PROMPT).json()
    details = warm["meta_info"]["cached_tokens_details"]
    assert warm["output_ids"] == cold["output_ids"]
    assert details["host"] > 0 < details["storage"]
    assert details["device"] + details["host"] + details["storage"] == warm["meta_info"]["cached_tokens"]


def range_of(start):
    return list(range(start, start + 70))


def test_server_info_reports_the_invariance_probe(start_reference):
    info = loopback.get(f"{start_reference()}/server_info").json()
    probe = info["tokenwire_reference"]["batch_invariance"]
    assert len(probe) == 4
    assert info["enable_deterministic_inference"] is all(probe.values())


def test_a_server_without_batch_invariance_says_so_at_its_start_and_in_server_info(tmp_path):
    words = ("serve", "--port", "0", "--model", "builtin:tiny")
    reader, writer = os.pipe()
    with (
        os.fdopen(reader) as printed,
        os.fdopen(writer) as stdout,
        (tmp_path / "stderr").open("w+") as stderr,
        forked("variant_reference", *words, stdout=stdout, stderr=stderr),
    ):
        stdout.close()
        info = loopback.get(f"{printed.readline().split()[-1]}/server_info").json()
    probe = info["tokenwire_reference"]["batch_invariance"]
    assert probe["alone_and_in_company"] is False
    assert info["enable_deterministic_inference"] is False
    (warning,) = (tmp_path / "stderr").read_text().splitlines()
    assert "not batch-invariant on this device: alone_and_in_company" in warning


def test_vllm_ignores_the_end_alone_and_waits_with_every_stop(start_reference):
    url = start_reference("--model", "builtin:scripted", "--api-dialect", "vllm")

    def ask(ids, **body):
        fields = {"temperature": 0, "max_tokens": len(ids), "return_token_ids": True, **body}
        answer = loopback.post(f"{url}/v1/completions", json={"prompt": ids, **fields})
        (choice,) = answer.json()["choices"]
        return choice["token_ids"], choice["finish_reason"], choice["stop_reason"], choice["text"]

    # A prompt is its own script; 2 is the end of sequence, 43 to 46 are letters.
    ids = [43, 2, 44, 45, 46, 44, 45]
    *_, text = ask(ids, ignore_eos=True)
    assert ask(ids) == ([43, 2], "stop", None, text[0])
    assert ask(ids, ignore_eos=True, stop_token_ids=[45]) == ([43, 2, 44, 45], "stop", 45, text[:2])
    pair = text[2:4]
    assert ask(ids, ignore_eos=True, stop=[pair]) == (ids[:5], "stop", pair, text[:2])
    # Minimal tokens ban the end, so it comes after them here.
    late = [44, 45, 46, 44, 45, 2]
    *_, text = ask(late, ignore_eos=True)
    assert ask(late, stop=[text[:2]], min_tokens=3) == (late[:5], "stop", text[:2], text[:3])
    assert ask(late, stop=[text[:2]]) == (late[:2], "stop", text[:2], "")
