"""Updates of the weights: what answers afterwards is made by the new ones, and by nothing of the old."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import loopback
import pytest

PROMPT = list(range(40, 110))
OTHER = {"model_path": "builtin:tiny-other", "weight_version": "v2"}


@pytest.fixture
def url(serve_reference):
    with serve_reference(("--weight-version", "v1", "--enable-faults")) as address:
        yield address


def generate(url, count=8, **body):
    sampling = {"temperature": 0, "max_new_tokens": count, "ignore_eos": True}
    asked = {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True, **body}
    answer = loopback.post(f"{url}/generate", json=asked).json()
    info = answer["meta_info"]
    logprobs = [entry[0] for entry in info["output_token_logprobs"]]
    return answer["output_ids"], logprobs, info["cached_tokens"], info["weight_version"]


def update(url, fault="", **body):
    headers = {"x-tokenwire-fault": fault} if fault else {}
    return loopback.post(f"{url}/update_weights_from_disk", json=body, headers=headers)


def test_an_update_leaves_nothing_of_the_old_weights(url, start_reference):
    old = generate(url)
    assert update(url, **OTHER).status_code == 200
    new = generate(url)
    fresh = generate(start_reference("--model", "builtin:tiny-other", "--weight-version", "v2"))
    assert new == fresh
    assert (old[2:], new[2:]) == ((0, "v1"), (0, "v2"))
    assert old[0] != new[0]
    assert loopback.get(f"{url}/model_info").json()["weight_version"] == "v2"
    assert update(url, model_path="builtin:tiny").status_code == 200
    assert generate(url)[:2] == old[:2]


def test_an_update_that_says_so_keeps_what_is_cached(url):
    generate(url)
    assert update(url, **OTHER, flush_cache=False).status_code == 200
    assert generate(url)[2] == 64


def test_a_fault_keeps_it_whatever_is_said(url):
    generate(url)
    assert update(url, "update-keeps-the-cache", **OTHER).status_code == 200
    assert generate(url)[2] == 64


def test_an_update_that_is_refused_changes_nothing(url):
    before = generate(url)[:2]
    for path in ("/nowhere", "builtin:tiny-mm", "builtin:none"):
        refused = update(url, model_path=path)
        assert refused.status_code == 400
        assert path in refused.text
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(generate, url, 1500)
        while not (loopback.get(f"{url}/get_load").json()[0]["num_reqs"] or running.done()):
            pass
        assert "requests are running" in update(url, **OTHER).text
        assert update(url, **OTHER, abort_all_requests=True).status_code == 200
        assert len(running.result()[0]) < 1500
    assert generate(url)[3] == "v2"
    assert update(url, model_path="builtin:tiny").status_code == 200
    assert generate(url)[:2] == before


def running_stream(url, path, rename, **body):
    """The last weight_versions of a long stream, during which the weights were given another version."""
    asked = {"stream": True, "return_weight_versions": True, **body}
    found = None
    with loopback.stream("POST", f"{url}{path}", json=asked) as answer:
        for number, line in enumerate(line for line in answer.iter_lines() if line.startswith("data: {")):
            event = json.loads(line.removeprefix("data: "))
            holders = event.get("choices", [event.get("meta_info", {})])
            found = next(
                (holder["weight_versions"] for holder in holders if holder.get("weight_versions")), found
            )
            if number == 1:
                assert rename().status_code == 200
    return found


def joined(spans):
    """The versions of spans that join from 0 to 300, each of which has tokens."""
    ends = [0, *(span["end"] for span in spans)]
    assert [span["start"] for span in spans] == ends[:-1]
    assert sorted(set(ends)) == ends
    assert ends[-1] == 300
    return [span["version"] for span in spans]


LONG = {"max_new_tokens": 300, "temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize(("version", "due"), [("v2", ["v1", "v2"]), ("v1", ["v1"])])
def test_a_span_begins_where_the_weights_get_another_version(version, due, url):
    def rename():
        body = {"new_version": version, "abort_all_requests": False}
        return loopback.post(f"{url}/update_weight_version", json=body)

    spans = running_stream(url, "/generate", rename, input_ids=PROMPT, sampling_params=LONG)
    assert joined(spans) == due
    assert generate(url)[3] == version


def test_a_renaming_ends_what_runs_unless_it_says_not(url):
    def rename():
        return loopback.post(f"{url}/update_weight_version", json={"new_version": "v2"})

    (span, *_) = running_stream(url, "/generate", rename, input_ids=PROMPT, sampling_params=LONG)
    assert span["end"] < 300


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 300}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 300}),
        (
            "/inference/v1/generate",
            {"token_ids": PROMPT, "sampling_params": {"max_tokens": 300, "ignore_eos": True}},
        ),
    ],
)
def test_vllms_endpoints_report_spans_on_request(path, body, serve_reference):
    with serve_reference(("--weight-version", "v1", "--api-dialect", "vllm")) as url:

        def rename():
            return loopback.post(f"{url}/update_weight_version", json={"new_version": "v2"})

        spans = running_stream(
            url, path, rename, model="builtin:tiny", ignore_eos=True, temperature=0, **body
        )
        assert joined(spans) == ["v1", "v2"]
        if path.startswith("/v1"):
            unasked = loopback.post(
                f"{url}{path}", json={**body, "model": "builtin:tiny", "max_tokens": 2}
            ).json()
            assert "weight_versions" not in unasked["choices"][0]


def test_a_pause_of_vllm_keeps_what_runs(serve_reference):
    with serve_reference(("--api-dialect", "vllm")) as url:

        def is_paused():
            return loopback.get(f"{url}/is_paused").json()["is_paused"]

        def pause():
            assert is_paused() is False
            for _ in range(2):
                paused = loopback.post(f"{url}/pause?mode=keep")
                assert paused.json() == {"status": "paused"}
                assert is_paused() is True
            resumed = loopback.post(f"{url}/resume")
            assert is_paused() is False
            return resumed

        sampling = {"max_tokens": 300, "ignore_eos": True}
        spans = running_stream(
            url, "/inference/v1/generate", pause, token_ids=PROMPT, sampling_params=sampling
        )
        assert joined(spans) == ["default"]
        assert loopback.post(f"{url}/pause?mode=sleep").status_code == 400
        assert is_paused() is False


def test_a_cached_prefix_keeps_the_version_that_computed_it(serve_reference):
    flags = ("--weight-version", "v1", "--enable-prefill-weight-versions")

    def spans(url, ids):
        body = {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
        info = loopback.post(f"{url}/generate", json=body).json()["meta_info"]
        found = [(span["version"], span["start"], span["end"]) for span in info["prefill_weight_versions"]]
        return found, info["cached_tokens"]

    with serve_reference(flags) as url:
        assert spans(url, PROMPT) == ([("v1", 0, 70)], 0)
        loopback.post(f"{url}/update_weight_version", json={"new_version": "v2", "abort_all_requests": False})
        assert spans(url, [*PROMPT, *range(40)]) == ([("v1", 0, 64), ("v2", 64, 110)], 64)
        assert spans(url, list(range(7))) == ([("v2", 0, 7)], 0)


def test_versions_of_the_prompt_are_named_on_demand_only(url):
    answer = loopback.post(f"{url}/generate", json={"input_ids": PROMPT}).json()
    assert "prefill_weight_versions" not in answer["meta_info"]
