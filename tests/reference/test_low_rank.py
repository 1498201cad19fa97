"""Adapters: a row of a request that names one goes through other weights, and no other row does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_requests import PROMPT, ask, neighbours, record, scored
from safetensors.torch import save_file

from tokenwire_reference.assembly import make_engine
from tokenwire_reference.core.engine import EngineArgs
from tokenwire_reference.core.request import Adapter, Request
from tokenwire_reference.extras.scripted import ScriptedModel
from tokenwire_reference.loading import load_model

Run = Callable[..., list[Request]]
LAYER = "model.layers.1.self_attn.v_proj"


@pytest.fixture(scope="module")
def model(device: str) -> Any:
    return load_model("builtin:tiny", device=device, lora=True)


@pytest.fixture(scope="module")
def first(model: Any) -> Adapter:
    return model.adapters.read("first", "builtin:1")


@pytest.fixture(scope="module")
def second(model: Any) -> Adapter:
    return model.adapters.read("second", "builtin:2")


def written(path: Path, *, layer: str = LAYER, rows: int = 64, **config: Any) -> str:
    """The directory of an adapter for one layer, as PEFT writes it."""
    torch.manual_seed(3)
    base = f"base_model.model.{layer}"
    matrices = {"A": torch.randn(2, rows), "B": torch.randn(32, 2)}
    save_file(
        {f"{base}.lora_{side}.weight": part for side, part in matrices.items()},
        path / "adapter_model.safetensors",
    )
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", **config}
    (path / "adapter_config.json").write_text(json.dumps(settings))
    return str(path)


def test_an_adapter_gives_what_a_model_with_its_deltas_gives(
    model: Any, run_to_end: Run, device: str, tmp_path: Path
) -> None:
    adapter = model.adapters.read("a", written(tmp_path))
    (adapted,) = run_to_end(make_engine(model), scored(adapter=adapter))
    other = load_model("builtin:tiny", device=device)
    down, up = adapter.parts[LAYER]
    other.module.get_submodule(LAYER).weight.data += (down @ up).T
    (merged,) = run_to_end(make_engine(other), scored())
    (plain,) = run_to_end(make_engine(model), scored())
    assert adapted.output_ids == merged.output_ids
    ours, theirs, base = (
        [entry[0] for entry in request.series["output_token_logprobs"]]
        for request in (adapted, merged, plain)
    )
    assert ours == pytest.approx(theirs, abs=1e-3)
    assert base[0] != pytest.approx(ours[0], abs=1e-2)


def test_a_row_has_the_bits_of_its_adapter_alone_and_in_company(
    model: Any, first: Adapter, second: Adapter, run_to_end: Run
) -> None:
    adapters = {"plain": None, "first": first, "second": second}
    alone = {
        name: run_to_end(make_engine(model), scored(name, adapter=adapter, new=24))[0]
        for name, adapter in adapters.items()
    }
    company = [scored(name, adapter=adapter, new=24) for name, adapter in adapters.items()]
    crowded = make_engine(
        model, EngineArgs(chunked_prefill_size=16, test_retract_interval=5, speculative_num_draft_tokens=3)
    )
    beside = run_to_end(crowded, *neighbours(5), *company)[5:]
    assert [record(request) for request in beside] == [record(request) for request in alone.values()]
    assert len({tuple(request.output_ids) for request in beside}) == 3


def test_a_prefix_is_cached_for_its_adapter(
    model: Any, first: Adapter, second: Adapter, run_to_end: Run
) -> None:
    engine = make_engine(model)
    again = model.adapters.read("first", "builtin:1")
    reloaded = model.adapters.read("first", "builtin:2")
    counts = [
        run_to_end(engine, ask(prompt=PROMPT, adapter=adapter))[0].cached_tokens
        for adapter in (None, first, second, reloaded, again, None)
    ]
    assert counts == [0, 0, 0, 0, 80, 80]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"use_dora": True}, "use_dora is True"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"layer": "lm_head"}, "lm_head, which is not a linear layer that can be adapted"),
        ({"rows": 32}, r"\[32, 2\] and \[2, 32\] for .*, which has 64 inputs"),
    ],
)
def test_what_is_no_low_rank_adapter_is_refused(
    model: Any, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = written(tmp_path, **change)
    with pytest.raises(ValueError, match=words):
        model.adapters.read("a", path)


def test_a_path_without_an_adapter_is_named(model: Any, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 2}')
    for path in ("builtin:some", str(tmp_path), str(tmp_path / "nothing")):
        with pytest.raises(ValueError, match=path):
            model.adapters.read("a", path)


def test_a_server_without_adapters_says_how_to_have_them(tiny: Any, scripted: ScriptedModel) -> None:
    for plain in (tiny, scripted):
        with pytest.raises(ValueError, match="--enable-lora"):
            plain.adapters.read("a", "builtin:1")
