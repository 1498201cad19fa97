"""Loads a model: a directory that transformers can read, or a builtin one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tokenwire_reference.core.attention import ATTENTION_NAME, UnsupportedModelError, paged_attention
from tokenwire_reference.core.hooks import Adapters
from tokenwire_reference.core.loaded_model import LoadedModel, probe_shapes, run_packed
from tokenwire_reference.core.model import Model
from tokenwire_reference.extras.builtin import BUILTIN_PREFIX, build_builtin
from tokenwire_reference.extras.diffusion import DIFFUSION, DiffusionModel
from tokenwire_reference.extras.low_rank import LowRankAdapters
from tokenwire_reference.extras.packed_linear import pack_again, pack_linear_layers
from tokenwire_reference.extras.scripted import SCRIPTED, ScriptedModel
from tokenwire_reference.extras.tape import Tapes
from tokenwire_reference.extras.taps import HiddenStateTap, RoutedExperts
from tokenwire_reference.extras.triton_attention import TritonPagedAttention


def load_model(
    model: str,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    context_length: int | None = None,
    tokenizer: bool = True,
    script: str | None = None,
    lora: bool = False,
) -> Model:
    """Load `builtin:<name>`, or the directory of a causal language model.

    `dtype` is "auto" (the checkpoint's type) or the name of a torch type. `context_length` may only shorten
    the model's context. Nothing is downloaded. Raises UnsupportedModelError, with the reason, for a model
    that would run wrongly, FileNotFoundError for a missing directory, and ValueError for options that do not
    fit. `script` is a file for `builtin:scripted`; `lora` lets requests run with adapters.
    """
    if model == SCRIPTED:
        return ScriptedModel(script=script, context_length=context_length, tokenizer=tokenizer)
    if script is None and model == DIFFUSION:
        return DiffusionModel(context_length=context_length, tokenizer=tokenizer)
    if script is not None:
        raise ValueError(f"--script {script} needs the model {SCRIPTED}, not {model}")
    _refuse_device(device)
    torch_dtype = _type_of_weights(dtype)
    if device == "cuda":
        _add_in_full_precision()
    AttentionInterface.register(ATTENTION_NAME, paged_attention)
    transformers.utils.logging.disable_progress_bar()
    module, text = _read_model(model, torch_dtype, with_tokenizer=tokenizer)
    module = module.eval().requires_grad_(requires_grad=False).to(device)
    longest = int(module.config.get_text_config().max_position_embeddings)
    if context_length is not None and not 1 <= context_length <= longest:
        raise ValueError(
            f"context_length is {context_length}; the model was built for 1 to {longest} positions"
        )
    pack_linear_layers(module)
    tapes = None
    if device == "cpu":
        # A GPU uses graphs.
        weights = (*module.parameters(), *module.buffers())
        tapes = Tapes(partial(run_packed, module), weights)
    return LoadedModel(
        name=model,
        module=module,
        tokenizer=text if tokenizer else None,
        vocab_size=int(module.config.get_text_config().vocab_size),
        eos_token_ids=_eos_token_ids(module),
        context_length=context_length or longest,
        shapes=probe_shapes(module),
        hidden_states=HiddenStateTap(module),
        experts=RoutedExperts(module),
        adapters=LowRankAdapters(module) if lora else Adapters(),
        tapes=tapes,
        gpu_cache=TritonPagedAttention if device == "cuda" else None,
        read_module=lambda path: _read_model(path, torch_dtype, with_tokenizer=False)[0],
        on_new_weights=pack_again,
    )


def _read_model(model: str, dtype: torch.dtype | str, *, with_tokenizer: bool) -> tuple[Any, Any]:
    if not model.startswith(BUILTIN_PREFIX):
        return _from_directory(Path(model), dtype, with_tokenizer=with_tokenizer)
    module, text = build_builtin(model, ATTENTION_NAME)
    return module if dtype == "auto" else module.to(dtype), text


def _refuse_device(device: str) -> None:
    """Check that a device exists. Raises ValueError if not."""
    if device not in {"cpu", "cuda"}:
        raise ValueError(
            f"device {device!r} is not supported; use cpu or cuda, "
            "which is the first of what CUDA_VISIBLE_DEVICES lists"
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', and torch finds no CUDA device; use cpu")


def _type_of_weights(name: str) -> torch.dtype | str:
    dtype = name if name == "auto" else getattr(torch, name, None)
    if dtype == "auto" or (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        return dtype
    raise ValueError(
        f"dtype {name!r} is not a type of torch that weights can have; use auto, float32, bfloat16 or float16"
    )


def _add_in_full_precision() -> None:
    """Make matrix products keep partial sums in full precision.

    How many partial sums a product has depends on its number of rows.
    """
    torch.set_float32_matmul_precision("highest")
    products = torch.backends.cuda.matmul
    products.allow_fp16_reduced_precision_reduction = False
    products.allow_bf16_reduced_precision_reduction = False


_OFFLINE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""Options of transformers that prevent downloads and the execution of code from a model, also after a prompt
to the user.
"""


def _from_directory(path: Path, dtype: torch.dtype | str, *, with_tokenizer: bool) -> tuple[Any, Any]:
    if not (path / "config.json").is_file():
        raise FileNotFoundError(
            f"{path} holds no config.json; give the directory of a model, or builtin:tiny"
        )
    with _reading("config.json", path):
        config = AutoConfig.from_pretrained(path, **_OFFLINE)
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise UnsupportedModelError(f"{path}: {config.model_type} is not a causal language model")
    # The class is checked before any weight is read, because `from_pretrained` would fail with a less clear
    # message, or not at all.
    architecture = AutoModelForCausalLM._model_mapping[type(config)]
    if not getattr(architecture, "_supports_attention_backend", False):
        raise UnsupportedModelError(
            f"{path}: {architecture.__name__} does not let its attention be replaced "
            "(_supports_attention_backend is false), so it cannot run over paged keys and values"
        )
    with _reading("weights", path):
        module = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation=ATTENTION_NAME, **_OFFLINE
        )
    if not with_tokenizer:
        return module, None
    with _reading("tokenizer", path):
        text = AutoTokenizer.from_pretrained(path, **_OFFLINE)
    # This cleanup removes spaces before punctuation, and a stream cannot take back spaces that were already
    # sent.
    text.clean_up_tokenization_spaces = False
    return module, text


@contextmanager
def _reading(part: str, path: Path) -> Iterator[None]:
    """Convert every error in the block to a ValueError with one line, because reading a file may raise any
    exception.
    """
    try:
        yield
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        raise UnsupportedModelError(
            f"{path}: its {part} cannot be read: {type(error).__name__}: {reason}"
        ) from error


def _eos_token_ids(module: Any) -> frozenset[int]:
    ids: set[int] = set()
    for config in (module.config.get_text_config(), module.generation_config):
        eos = getattr(config, "eos_token_id", None)
        ids.update([eos] if isinstance(eos, int) else eos or [])
    return frozenset(ids)
