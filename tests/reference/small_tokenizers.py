"""A small tokenizer of each kind, made here: what their decoders make of ids is all that matters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from tokenwire_reference.extras.builtin import byte_level_tokenizer


class Letters:
    """A vocabulary in which id n is the letter with that code; `first` is the code of id 0."""

    chat_template = None

    def __init__(self, first: int = 0, letters: int = 0x110000) -> None:
        self._first, self._letters = first, letters

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return chr(self._first + token_id % self._letters)

    def decode(self, ids: Sequence[int], **options: bool) -> str:
        return "".join(map(self.convert_ids_to_tokens, ids))


SPECIAL = ["<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["a", "b", "\u2581", "\u2581a", "\u2581\u2581b", "\u8a9e", "\u2581.", "'", "\u2581n't", "\ufffd"]


def _fast(model: models.Model, decoder: decoders.Decoder) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def _vocabulary(pieces: Sequence[str]) -> dict[str, int]:
    return {piece: token_id for token_id, piece in enumerate([*SPECIAL, *pieces])}


def sentencepiece(*, strip: bool = True) -> PreTrainedTokenizerFast:
    """As Llama-2 and Mistral: other characters are bytes, and the first space is stripped. Gemma keeps it."""
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    return _fast(
        models.BPE(_vocabulary([*BYTES, *WORDS]), [], byte_fallback=True),
        decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if strip else parts),
    )


def metaspace(*, byte_fallback: bool) -> PreTrainedTokenizerFast:
    """As T5: all spaces of the first token are stripped."""
    if byte_fallback:
        pieces, decoder = [*BYTES, *WORDS], decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    else:
        pieces, decoder = WORDS, decoders.Metaspace()
    scores = [(piece, 0.0) for piece in [*SPECIAL, *pieces]]
    return _fast(models.Unigram(scores, 0, byte_fallback=byte_fallback), decoder)


def wordpiece(*, cleanup: bool) -> PreTrainedTokenizerFast:
    """As BERT: a space before each token, but before those that begin with ##."""
    pieces = ["a", "##a", "b", "##b", ".", "##.", "'", "s", "n't", "do", "not", "##", "\u8a9e"]
    model = models.WordPiece(_vocabulary(pieces), unk_token=SPECIAL[0])
    return _fast(model, decoders.WordPiece("##", cleanup))


def word_end() -> PreTrainedTokenizerFast:
    """As the first GPT: a space behind a token that ends a word, but not behind the last."""
    return _fast(models.BPE(_vocabulary(["a", "b</w>", "</w>", "c"]), []), decoders.BPEDecoder("</w>"))


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte-level": byte_level_tokenizer,
    "SentencePiece": sentencepiece,
    "SentencePiece, first space kept": lambda: sentencepiece(strip=False),
    "Metaspace": lambda: metaspace(byte_fallback=False),
    "Metaspace with bytes": lambda: metaspace(byte_fallback=True),
    "WordPiece": lambda: wordpiece(cleanup=False),
    "WordPiece, cleaned up": lambda: wordpiece(cleanup=True),
    "word ends": word_end,
}
