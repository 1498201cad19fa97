"""Any causal language model runs as transformers itself runs it, or is refused with the reason."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tokenwire_reference.assembly import make_engine
from tokenwire_reference.core.attention import UnsupportedModelError
from tokenwire_reference.core.engine import Engine, EngineArgs
from tokenwire_reference.core.loaded_model import LoadedModel
from tokenwire_reference.core.request import Request, SamplingParams
from tokenwire_reference.core.row_sizes import stable_row_sizes
from tokenwire_reference.extras.invariance_probe import probe_invariance
from tokenwire_reference.loading import load_model

MODELS = Path(__file__).parents[2] / "fixtures" / "models"

SMALL = {
    "vocab_size": 200,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


def save(path: Path, model_type: str, **config: Any) -> str:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**SMALL, **config}))
    model.eval().save_pretrained(path)
    return str(path)


def greedy_by_transformers(path: str, prompt: list[int], count: int) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    mask = torch.ones(1, len(prompt), dtype=torch.int64)
    output = model.generate(
        torch.tensor([prompt]), attention_mask=mask, max_new_tokens=count, do_sample=False, eos_token_id=None
    )
    ids: list[int] = output[0, len(prompt) :].tolist()
    return ids


def greedy(rid: str, prompt: list[int], count: int) -> Request:
    return Request(rid, tuple(prompt), SamplingParams(max_new_tokens=count, temperature=0, ignore_eos=True))


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("llama", {}),
        ("mistral", {"sliding_window": 24}),
        ("qwen3", {"head_dim": 32}),
        ("olmo2", {}),
        ("phi3", {}),
        ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}),
        ("gpt_neox", {}),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}),
    ],
)
def test_architectures_run_as_in_transformers(
    device: str,
    model_type: str,
    config: dict[str, Any],
    tmp_path: Path,
    run_to_end: Callable[..., list[Request]],
) -> None:
    path = save(tmp_path, model_type, **config)
    prompt = list(range(3, 60))
    model = load_model(path, tokenizer=False, device=device)
    engine = make_engine(model, EngineArgs(chunked_prefill_size=32))
    asked, _ = run_to_end(engine, greedy("asked", prompt, 30), greedy("neighbour", prompt[5:30], 20))
    assert asked.output_ids == greedy_by_transformers(path, prompt, 30)
    assert len(set(asked.output_ids)) > 8
    assert model.tokenizer is None
    assert model.eos_token_ids == {1}


@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-llama"])
def test_fixture_models_run_as_in_transformers(
    device: str, name: str, run_to_end: Callable[..., list[Request]]
) -> None:
    path = str(MODELS / name)
    prompt = AutoTokenizer.from_pretrained(path)(
        "The license applies to the work, whole or in part."
    ).input_ids
    engine = make_engine(load_model(path, device=device))
    (request,) = run_to_end(engine, greedy("r", prompt, 60))
    assert request.output_ids == greedy_by_transformers(path, prompt, 60)


@pytest.mark.parametrize(
    ("model_type", "config", "message"),
    [
        ("gemma2", {}, "Gemma2Attention passes softcap to its attention"),
        ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2}, "GptOssAttention passes s_aux"),
        (
            "mamba",
            {},
            r"MambaForCausalLM does not let its attention be replaced \(_supports_attention_backend",
        ),
    ],
)
def test_what_would_run_wrongly_is_refused(
    model_type: str, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = save(tmp_path, model_type, **config)
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(path, tokenizer=False)


def test_other_kinds_of_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(UnsupportedModelError, match="t5 is not a causal language model"):
        load_model(str(tmp_path))


class Marker:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_files_that_cannot_be_read_are_named_in_one_line_and_never_run(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(MODELS / "tiny-qwen2", directory)
    weights, tokenizer = directory / "model.safetensors", directory / "tokenizer.json"
    left = tmp_path / "left"

    def refusal() -> str:
        with pytest.raises(UnsupportedModelError) as refused:
            load_model(str(directory))
        return str(refused.value)

    tokenizer.write_text("{}")
    assert "its tokenizer cannot be read" in refusal()
    weights.write_bytes(weights.read_bytes()[:100_000])
    assert "its weights cannot be read: SafetensorError" in refusal()
    weights.unlink()
    torch.save({"x": Marker(left)}, directory / "pytorch_model.bin")
    message = refusal()
    assert "its weights cannot be read: UnpicklingError" in message
    assert (message.count("\n"), left.exists()) == (0, False)


@pytest.mark.parametrize("of", ["config", "model", "tokenizer"])
def test_code_that_comes_with_a_model_is_not_run_whatever_the_terminal_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """Transformers asks on the terminal where nobody decided."""
    directory = tmp_path / "model"
    shutil.copytree(MODELS / "tiny-qwen2", directory)
    left = tmp_path / "left"
    (directory / "own.py").write_text(f"open({str(left)!r}, 'w').close()\nclass Own:\n    pass\n")
    kinds = {"config": "AutoConfig", "model": "AutoModelForCausalLM", "tokenizer": "AutoTokenizer"}
    name = "tokenizer_config.json" if of == "tokenizer" else "config.json"
    found = json.loads((directory / name).read_text())
    own = ["own.Own", "own.Own"] if of == "tokenizer" else "own.Own"
    more = (
        {"model_type": "of-its-own"}
        if of == "config"
        else {"tokenizer_class": "Own"}
        if of == "tokenizer"
        else {}
    )
    (directory / name).write_text(json.dumps({**found, **more, "auto_map": {kinds[of]: own}}))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with contextlib.suppress(UnsupportedModelError):
        load_model(str(directory))
    assert not left.exists()


def test_no_tokenizer_takes_spaces_back(tmp_path: Path) -> None:
    """Spaces before punctuation are a text's own: pieces that a stream has shown cannot lose them."""
    shutil.copytree(MODELS / "tiny-qwen2", tmp_path, dirs_exist_ok=True)
    found = tmp_path / "tokenizer_config.json"
    found.write_text(json.dumps({**json.loads(found.read_text()), "clean_up_tokenization_spaces": True}))
    assert AutoTokenizer.from_pretrained(tmp_path).clean_up_tokenization_spaces
    assert not load_model(str(tmp_path)).tokenizer.clean_up_tokenization_spaces


def test_a_checkpoint_that_lies_elsewhere_is_the_same_model(tmp_path: Path) -> None:
    """Else the halves of a pair on two machines take no pages from each other."""
    shutil.copytree(MODELS / "tiny-qwen2", tmp_path / "copy")
    places = (MODELS / "tiny-qwen2", tmp_path / "copy")
    here, there = (load_model(str(place), tokenizer=False).fingerprint() for place in places)
    assert here == there
    assert here != load_model(str(MODELS / "tiny-llama"), tokenizer=False).fingerprint()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": "/no/such/model"}, FileNotFoundError, "/no/such/model holds no config.json"),
        ({"model": "builtin:nope"}, ValueError, "builtin:nope is not a builtin model"),
        ({"device": "tpu"}, ValueError, "device 'tpu' is not supported; use cpu or cuda"),
        ({"device": "cuda:1"}, ValueError, "the first of what CUDA_VISIBLE_DEVICES lists"),
        ({"dtype": "float7"}, ValueError, "dtype 'float7' is not a type of torch"),
        ({"dtype": "nn"}, ValueError, "dtype 'nn' is not a type of torch"),
        ({"dtype": "int8"}, ValueError, "dtype 'int8' is not a type of torch"),
        ({"dtype": "Tensor"}, ValueError, "dtype 'Tensor' is not a type of torch"),
        ({"context_length": 5000}, ValueError, "context_length is 5000; the model was built for 1 to 4096"),
        ({"context_length": 0}, ValueError, "context_length is 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        load_model(**{"model": "builtin:tiny", **arguments})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_gpu_is_named() -> None:
    with pytest.raises(ValueError, match="torch finds no CUDA device; use cpu"):
        load_model("builtin:tiny", device="cuda")


class Fickle(nn.Linear):
    """A linear layer whose bits change with the number of rows, as those of real libraries do."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows) + (1e-7 if rows.shape[0] in {16, 48} else 0.0)


class Uneven(nn.Linear):
    """A linear layer that computes the last row of a batch in another way."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result = super().forward(rows)
        return torch.cat([result[:-1], result[-1:] + 1e-7])


@pytest.fixture
def with_layer(tiny: LoadedModel) -> Iterator[Callable[[nn.Linear], LoadedModel]]:
    """builtin:tiny with one more kind of linear layer in it."""
    sizes = tiny.row_sizes

    def put(layer: nn.Linear) -> LoadedModel:
        tiny.module.extra, tiny.row_sizes = layer.to(tiny.device), ()
        return tiny

    yield put
    del tiny.module.extra
    tiny.row_sizes = sizes


def exact(layer: nn.Linear) -> nn.Linear:
    """A layer whose own products are the same on every processor: it adds up zeros."""
    return layer.requires_grad_(requires_grad=False).apply(lambda item: nn.init.zeros_(item.weight))


def test_numbers_of_rows_that_disagree_are_not_used(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = stable_row_sizes(nn.Sequential(exact(nn.Linear(64, 32)), exact(Fickle(32, 32))), 100)
    assert sizes == (4, 8, 32, 64, 80, 96, 112)
    monkeypatch.setattr(tiny, "row_sizes", sizes)
    assert [tiny.pad_rows(rows) for rows in (1, 8, 9, 33, 100)] == [4, 8, 32, 64, 112]


def test_few_rows_are_not_used_where_they_would_leave_values_over() -> None:
    assert stable_row_sizes(exact(nn.Linear(32, 6)), 100)[0] == 16


def test_large_layers_multiply_by_packed_weights_and_keep_the_bits_of_a_row(tmp_path: Path) -> None:
    path = save(tmp_path, "qwen2", hidden_size=512, intermediate_size=512, num_hidden_layers=1)
    model = load_model(path)
    assert isinstance(model, LoadedModel)
    packed = {name.split(".")[-2] for name, _ in model.module.named_buffers() if "packed" in name}
    assert packed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    engine = make_engine(model)
    request = greedy("r", [5, 6, 7], 12)
    engine.add(request)
    while not engine.idle:
        engine.step()
    assert request.output_ids == greedy_by_transformers(path, [5, 6, 7], 12)
    assert not model.tapes.refused
    assert set(probe_invariance(partial(Engine, model), model, page_size=16).values()) == {True}


def test_one_size_stays_where_nothing_agrees(with_layer: Callable[[nn.Linear], LoadedModel]) -> None:
    model = with_layer(Uneven(32, 32).requires_grad_(requires_grad=False))
    model.probe_row_sizes(100)
    assert model.row_sizes == (112,)
