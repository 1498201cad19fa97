"""Writes the checkpoint of a parrot as a GGUF file for llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tokenwire.parrot.law import Parrot, positions_of
from tokenwire.parrot.vocabulary import CHAT_TEMPLATE, TokenizerFiles
from tokenwire_parrot.architecture import architecture
from tokenwire_parrot.weights import Array

_ARCHITECTURE = "qwen2"


def write_gguf(
    path: Path, parrot: Parrot, head_size: int, weights: Mapping[str, Array], words: TokenizerFiles
) -> None:
    """Write a parrot with a byte-level vocabulary. Its matrices are exact in float16."""
    shapes = architecture(parrot, head_size, llama=False)
    writer = gguf.GGUFWriter(path, _ARCHITECTURE)
    writer.add_name("parrot")
    writer.add_context_length(positions_of(parrot.distance))
    writer.add_embedding_length(shapes["hidden_size"])
    writer.add_block_count(shapes["num_hidden_layers"])
    writer.add_feed_forward_length(shapes["intermediate_size"])
    writer.add_head_count(shapes["num_attention_heads"])
    writer.add_head_count_kv(shapes["num_key_value_heads"])
    writer.add_rope_freq_base(shapes["rope_theta"])
    writer.add_layer_norm_rms_eps(shapes["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _add_vocabulary(writer, words)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, shapes["num_hidden_layers"])
    for name, array in weights.items():
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert known is not None, name
        writer.add_tensor(known, array.astype(np.float16 if array.ndim > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: gguf.GGUFWriter, words: TokenizerFiles) -> None:
    document: Mapping[str, Any] = words.files["tokenizer.json"]
    pieces = sorted(document["model"]["vocab"], key=document["model"]["vocab"].__getitem__)
    added = {token["content"]: token for token in document["added_tokens"]}
    types = [
        gguf.TokenType.NORMAL
        if piece not in added
        else gguf.TokenType.CONTROL
        if added[piece]["special"]
        else gguf.TokenType.USER_DEFINED
        for piece in pieces
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_ARCHITECTURE)
    writer.add_token_list(pieces)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in document["model"]["merges"]])
    # Without these fields, llama.cpp uses id 11 for both, which is an ordinary token of the parrot.
    writer.add_bos_token_id(words.eos if words.bos is None else words.bos)
    writer.add_eos_token_id(words.eos)
    for token in words.ends:
        writer.add_eot_token_id(token)
    if words.pad is not None:
        writer.add_pad_token_id(words.pad)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
