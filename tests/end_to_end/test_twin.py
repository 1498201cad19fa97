"""`tokenwire twin` on two processes of the reference: the same weights, another type of them, other weights,
and the same weights with another chat template, other ends or another tokenizer.

`nox -s tests` does it with ten models; each has to be told apart from its likes every time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from proofs.killing.serving import DECODES, routed
from proofs.twinning.models import CHANGES, QWEN2, write_model
from proofs.twins import served

from tokenwire.judging.verdict import ExitStatus

MODELS = range(10)
Serve = Callable[[tuple[str, ...]], AbstractContextManager[str]]
ALL_PARTS = "(weights, template, ends, tokenizer)"
_TOKENIZER = Path(__file__).parents[2] / "fixtures" / "models" / "tiny-qwen2"


def small_model(folder: Path, seed: int, change: str = "as it is") -> str:
    """Write a small model, drawn from a seed and then changed. Return its folder."""
    return str(write_model(folder, seed, CHANGES[change], QWEN2))


@pytest.mark.parametrize("seed", MODELS)
def test_twins_are_told_from_others(tokenwire, serve_reference: Serve, tmp_path: Path, seed: int) -> None:
    plain = small_model(tmp_path / "plain", seed)
    rounded = small_model(tmp_path / "rounded", seed, "int4")
    scaled = small_model(tmp_path / "scaled", seed, "whole layer")
    with ExitStack() as servers:
        first = servers.enter_context(serve_reference(("--model", plain)))

        def twin(model: str, *flags: str, tokens: int) -> tuple[int, dict[str, Any]]:
            with serve_reference(("--model", model, *flags)) as url:
                ran = tokenwire(
                    "twin", "--a", first, "--b", url, "--tokens", str(tokens), "--json", "twin.json"
                )
            return ran.returncode, json.loads((tmp_path / "twin.json").read_text("utf-8"))

        status, same = twin(plain, tokens=300)
        assert (status, same["outcome"]) == (ExitStatus.CONFORMS, "the same")
        status, noisy = twin(plain, "--dtype", "bfloat16", tokens=1000)
        assert (status, noisy["outcome"]) == (ExitStatus.CONFORMS, "the same up to noise"), noisy
        status, other = twin(rounded, tokens=300)
        assert (status, other["outcome"]) == (ExitStatus.VIOLATION, "another model")
        assert other["told_within"] <= 300
        status, near = twin(scaled, tokens=3000)
        assert (status, near["outcome"]) == (ExitStatus.VIOLATION, "another model")
        assert near["told_within"] <= 3000
    for seen in (same, noisy, other, near):
        found = {name: seen[name] for name in ("outcome", "told_within", "tokens", "apart", "limit")}
        print(seed, json.dumps(found))


@pytest.mark.parametrize("seed", MODELS)
def test_prefill_and_decode_apart_are_one_server(
    tokenwire, serve_reference: Serve, tmp_path: Path, seed: int
) -> None:
    model = ("--model", small_model(tmp_path / "plain", seed))
    prefills = (DECODES[0], "prefill", "--disaggregation-bootstrap-port", "0")
    with (
        serve_reference(model) as whole,
        serve_reference((*model, *prefills)) as prefill,
        serve_reference((*model, *DECODES)) as decode,
        routed(prefill, decode) as apart,
    ):
        ran = tokenwire("twin", "--a", whole, "--b", apart, "--tokens", "300")
    assert ran.returncode == ExitStatus.CONFORMS, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1] == f"the same {ALL_PARTS}: 320 tokens to the last digit"


def test_a_check_tells_of_a_twin_beside_its_verdicts(
    tokenwire, start_reference: Callable[..., str], tmp_path: Path
) -> None:
    urls = start_reference(), start_reference("--model", str(_TOKENIZER))
    asked = (
        "--requirement",
        "ids-are-counted",
        "--scenario",
        "greedy-stream",
        "--budget",
        "quick",
        "--no-keep",
    )
    status = {}
    for name, url in (("itself", urls[0]), ("another", urls[1])):
        report = tmp_path / f"{name}.json"
        ran = tokenwire("check", "--target", urls[0], "--twin", url, *asked, "--json", str(report))
        found = json.loads(report.read_text("utf-8"))
        assert found["exit_status"] == ran.returncode, ran.stdout + ran.stderr
        assert found["twin"]["outcome"] in ran.stdout
        status[found["twin"]["outcome"]] = ran.returncode
    assert status == {"the same": ExitStatus.CONFORMS, "another model": ExitStatus.VIOLATION}


@pytest.mark.parametrize(
    ("part", "words"),
    [("template", "another template; "), ("ends", "other ends; "), ("tokenizer", "another tokenizer; ")],
)
def test_the_same_weights_with_something_else_around_them_are_not_the_same(
    tokenwire, serve_reference: Serve, tmp_path: Path, part: str, words: str
) -> None:
    plain = str(write_model(tmp_path / "plain", 0))
    changed = str(write_model(tmp_path / "changed", 0, CHANGES[part]))
    with serve_reference(("--model", plain)) as first, serve_reference(("--model", changed)) as other:
        ran = tokenwire("twin", "--a", first, "--b", other, "--tokens", "300", "--json", "twin.json")
    assert ran.returncode == ExitStatus.VIOLATION, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1].startswith(words)
    found = json.loads((tmp_path / "twin.json").read_text("utf-8"))
    assert found["outcome"] == "another deployment"
    assert {each["name"] for each in found["parts"] if each["differing"]} == {part}, found["parts"]


@pytest.mark.parametrize("change", ["int8", "layer", "rope"])
def test_other_weights_are_never_the_same_in_few_digits(
    tokenwire, serve_reference: Serve, tmp_path: Path, change: str
) -> None:
    """Both sides repeat themselves to the last digit, and lie no further apart than rounding brings them."""
    plain = str(write_model(tmp_path / "plain", 0))
    changed = str(write_model(tmp_path / "changed", 0, CHANGES[change]))
    flags = ("--dtype", "bfloat16")
    with (
        serve_reference(("--model", plain, *flags)) as first,
        serve_reference(("--model", changed, *flags)) as other,
    ):
        ran = tokenwire("twin", "--a", first, "--b", other)
    assert ran.returncode in {ExitStatus.VIOLATION, ExitStatus.NOTHING_EVALUATED}, ran.stdout + ran.stderr


def test_a_kernel_that_adds_in_another_order_is_the_same_in_few_digits(tokenwire, tmp_path: Path) -> None:
    model = write_model(tmp_path / "plain", 0)
    with served(model, "bfloat16") as first, served(model, "bfloat16", "wide") as other:
        ran = tokenwire("twin", "--a", first, "--b", other)
    assert ran.returncode == ExitStatus.CONFORMS, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1].startswith(f"the same up to noise {ALL_PARTS}: ")


def test_precision_hides_no_four_bit_weights(tokenwire, serve_reference: Serve, tmp_path: Path) -> None:
    """Nor does it where both sides compute with few digits."""
    plain = small_model(tmp_path / "plain", 0)
    rounded = small_model(tmp_path / "rounded", 0, "int4")
    with (
        serve_reference(("--model", plain, "--dtype", "bfloat16")) as first,
        serve_reference(("--model", rounded, "--dtype", "bfloat16")) as other,
    ):
        ran = tokenwire("twin", "--a", first, "--b", other, "--tokens", "300")
    assert ran.returncode == ExitStatus.VIOLATION, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1].startswith("another model: ")


@pytest.mark.parametrize(
    "dialect", ["sglang-chat", "sglang-completions", "vllm-generate", "vllm-completions", "vllm-chat"]
)
def test_every_endpoint_can_be_asked(tokenwire, start_reference: Callable[..., str], dialect: str) -> None:
    """Where no prompt is scored, answers are, as far as both sides wrote the same."""
    url = start_reference("--api-dialect", dialect.partition("-")[0])
    ran = tokenwire("twin", "--a", url, "--b", url, "--tokens", "300", "--dialect", dialect)
    assert ran.returncode == ExitStatus.CONFORMS, ran.stdout + ran.stderr
    assert f"asked as {dialect}" in ran.stdout
    assert "to the last digit" in ran.stdout


def test_what_both_answered_is_kept(tokenwire, start_reference: Callable[..., str], tmp_path: Path) -> None:
    url = start_reference()
    ran = tokenwire("twin", "--a", url, "--b", url, "--tokens", "64", "--record", "kept")
    assert ran.returncode == ExitStatus.CONFORMS, ran.stdout + ran.stderr
    names = [
        {
            str(file.relative_to(tmp_path / "kept" / side))
            for file in (tmp_path / "kept" / side).rglob("*.jsonl")
        }
        for side in "ab"
    ]
    written = {name for name in names[0] ^ names[1] if name.startswith("sglang-generate/twin/text-")}
    assert names[0] ^ names[1] == written, "the sides write every other text, and are asked the same else"
    assert "sglang-generate/twin/scored-0.jsonl" in names[0] & names[1]
    compared = tokenwire("compare", "kept/a", "kept/b")
    assert compared.returncode == ExitStatus.CONFORMS, compared.stdout


def test_two_families_are_compared_by_their_numbers(tokenwire, start_reference: Callable[..., str]) -> None:
    sglang = start_reference("--api-dialect", "sglang")
    with_other_names = start_reference("--api-dialect", "vllm")
    ran = tokenwire("twin", "--a", sglang, "--b", with_other_names, "--tokens", "300")
    assert ran.returncode == ExitStatus.CONFORMS, ran.stdout + ran.stderr


def test_a_server_that_does_not_repeat_itself_is_its_own_twin(
    tokenwire, start_reference: Callable[..., str]
) -> None:
    url = start_reference("--near-ties", "0.05")
    ran = tokenwire("twin", "--a", start_reference(), "--b", url, "--tokens", "1000", "--html", "twin.html")
    assert ran.returncode == ExitStatus.CONFORMS, ran.stdout + ran.stderr
    assert "the same up to noise" in ran.stdout.splitlines()[-1]


def test_what_follows_from_no_number_is_named_beside_the_outcome(
    tokenwire, start_reference: Callable[..., str]
) -> None:
    urls = start_reference(), start_reference("--sampling-backend", "mirror")
    ran = tokenwire("twin", "--a", urls[0], "--b", urls[1], "--tokens", "300")
    assert ran.returncode == ExitStatus.CONFORMS, ran.stdout + ran.stderr
    besides = [line for line in ran.stdout.splitlines() if line.startswith("besides")]
    assert besides, ran.stdout
    assert all("mirror" in line for line in besides)
    assert ran.stdout.splitlines()[-1].startswith(f"the same {ALL_PARTS}: ")


def test_nobody_there(tokenwire) -> None:
    assert tokenwire("twin", "--a", "http://127.0.0.1:1", "--b", "nowhere").returncode == ExitStatus.USAGE
