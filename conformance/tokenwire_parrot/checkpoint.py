"""Writes the checkpoint of a parrot, in the format that servers load. Its bytes are always the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenwire.parrot.law import DISTANCE, LEAST_DISTANCE, Parrot, positions_of
from tokenwire.parrot.vocabulary import TokenizerFiles, Vocabulary, pieces_of, tokenizer_files
from tokenwire_parrot.architecture import architecture

if TYPE_CHECKING:
    from tokenwire_parrot.weights import Array

_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)


def write_parrot(
    folder: Path,
    *,
    distance: int = DISTANCE,
    head_size: int = 64,
    vocabulary: Vocabulary = Vocabulary.BYTE_LEVEL,
    tokenizer: Path | None = None,
    gguf: bool = False,
    with_weights: bool = True,
) -> Parrot:
    """Write a checkpoint into a folder, with one of our vocabularies or with the tokenizer of another model.

    `gguf`: also write a file for llama.cpp. Weights are optional, because front ends without a model do not
    need them. Raises ValueError for options that exclude each other, FileNotFoundError if `tokenizer` has no
    tokenizer, and ImportError if numpy or gguf is missing.
    """
    if distance < LEAST_DISTANCE:
        raise ValueError(f"the distance is {distance}; it must be at least {LEAST_DISTANCE}")
    if tokenizer is None:
        words = tokenizer_files(vocabulary, positions_of(distance))
        size = len(words.files["tokenizer.json"]["model"]["vocab"])
    else:
        words, size = _of_another(tokenizer)
    parrot = Parrot(size, distance)
    llama = tokenizer is not None or vocabulary is Vocabulary.SENTENCEPIECE
    if gguf and llama:
        raise ValueError("a GGUF file needs the vocabulary byte-level or split-markers; remove --tokenizer")
    weights = {}
    if with_weights:
        from tokenwire_parrot.weights import tensors

        weights = dict(tensors(parrot, head_size, llama=llama))
    ends = {"bos_token_id": words.bos, "eos_token_id": words.eos, "pad_token_id": words.pad}
    documents = {
        "config.json": {**architecture(parrot, head_size, llama=llama), **ends},
        "generation_config.json": {**ends, "eos_token_id": [words.eos, *words.ends], "do_sample": False},
        **words.files,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name in _TOKENIZER:
        if tokenizer is not None and (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, folder / name)
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if with_weights:
        _write_safetensors(folder / "model.safetensors", weights)
    if gguf:
        from tokenwire_parrot.gguf_file import write_gguf

        write_gguf(folder / "parrot.gguf", parrot, head_size, weights, words)
    return parrot


def _write_safetensors(path: Path, weights: Mapping[str, Array]) -> None:
    """Write a safetensors file: the length of the header, the header as JSON, the numbers."""
    from tokenwire_parrot.weights import bfloat16_bytes

    data = {name: bfloat16_bytes(array) for name, array in weights.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, written in data.items():
        end = begin + len(written)
        header[name] = {"dtype": "BF16", "shape": weights[name].shape, "data_offsets": [begin, end]}
        begin = end
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    path.write_bytes(b"".join((len(words).to_bytes(8, "little"), words, *data.values())))


def _of_another(folder: Path) -> tuple[TokenizerFiles, int]:
    """Return the tokenizer of another model, and the number of its ids."""
    path = folder / "tokenizer.json"
    document = _read(path)
    try:
        known = {piece: token for token, piece in pieces_of(document)}
        known |= {token["content"]: token["id"] for token in document["added_tokens"]}
        size = max(known.values()) + 1
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path} lacks model.vocab or added_tokens; name a model with a fast tokenizer"
        ) from error
    settings = _read(folder / "tokenizer_config.json")
    named = settings if isinstance(settings, dict) else {}
    eos = _id_of(named.get("eos_token"), known)
    if eos is None:
        raise ValueError(f"{folder / 'tokenizer_config.json'} has no eos_token; use a tokenizer that has one")
    bos, pad = _id_of(named.get("bos_token"), known), _id_of(named.get("pad_token"), known)
    return TokenizerFiles({}, bos, eos, pad), size


def _read(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; name the folder of a model with a fast tokenizer")
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error


def _id_of(token: Any, known: Mapping[str, int]) -> int | None:
    name = token.get("content") if isinstance(token, dict) else token
    return known.get(name) if isinstance(name, str) else None
