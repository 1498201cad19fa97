"""Updates of the weights: what answers afterwards is made by the new ones, and by nothing of the old."""

from __future__ import annotations

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
