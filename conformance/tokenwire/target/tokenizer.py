"""The text of token ids, from a local tokenizer or from the server's own tokenizer.

A local tokenizer is loaded from the model's `tokenizer.json` with the small package `tokenizers`. The
server's tokenizer consists of its `/detokenize` answers in the run, so that a replay has it as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tokenwire.dialects.detokenize import Detokenize, Ids
from tokenwire.dialects.dialect import Dialect, load_dialects
from tokenwire.parrot.recognition import KnownModel, OtherTokenizer
from tokenwire.parrot.vocabulary import Words, words_in
from tokenwire.usage_error import UsageError
from tokenwire.wire.exchange import ExchangeHead, RequestHead

Question = tuple[Ids, bool]
"""Token ids, and True if special tokens are skipped."""

_MAY_BE_SPECIAL = re.compile(r"<[^<>]*>|\[[^\[\]]*\]|>>[^<>]*<<")
"""Matches text that may be a special token in any vocabulary: `<s>`, `<|im_end|>`, `[INST]`, `>>TITLE<<`."""
_SPECIAL = re.compile(r"<\|.*\|>|<｜.*｜>|</?s>|<(unk|pad|bos|eos)>")
"""Matches the text of a single id if it is certainly a special token."""

WAY_OUT = "give --tokenizer DIR, where DIR holds the model's tokenizer.json"
HOW_TO_ENABLE = f"comparing text with ids needs a tokenizer: {WAY_OUT}, or enable the server's /detokenize"


class Tokenizer(Protocol):
    """The interface of a tokenizer for checks."""

    @property
    def cleans_up(self) -> bool:
        """True if decoding may have removed spaces before punctuation."""

    def decode(
        self,
        ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str | None:
        """Return the text of ids. None if it is unknown, for example for ids beyond the vocabulary."""


class LocalTokenizer:
    """A tokenizer that runs in this process."""

    def __init__(self, folder: Path) -> None:
        """Load `folder/tokenizer.json`. Raises UsageError if it is missing or invalid."""
        try:
            import tokenizers
        except ImportError as error:
            raise UsageError("--tokenizer needs a package: pip install tokenizers") from error
        path = folder / "tokenizer.json" if folder.is_dir() else folder
        if not path.is_file():
            raise UsageError(f"there is no {path}; give the folder that contains the model's tokenizer.json")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises no narrower exception
            raise UsageError(f"{path} is not a tokenizer: {error}") from error
        self._folder = path.parent
        self.size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.cleans_up = _settings(path.parent).get("clean_up_tokenization_spaces") is True

    @cached_property
    def known(self) -> OtherTokenizer:
        """The vocabulary and encoder of a model whose right answers are known."""
        return _known(self._tokenizer, self._folder)

    def decode(
        self,
        ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str | None:
        """Return the text of ids. None for ids beyond the vocabulary.

        `spaces_between_special_tokens` has no effect, because fast tokenizers never add such spaces.
        """
        del spaces_between_special_tokens
        if ids and (min(ids) < 0 or max(ids) >= self.size):
            return None
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)


def _known(tokenizer: Any, folder: Path) -> OtherTokenizer:
    document = json.loads(tokenizer.to_str())
    reported = [
        _settings(folder, name).get("eos_token_id") for name in ("generation_config.json", "config.json")
    ]
    named = _settings(folder).get("eos_token")
    name = named.get("content") if isinstance(named, dict) else named
    reported.append(tokenizer.token_to_id(name) if isinstance(name, str) else None)
    ends = [token for ids in reported for token in (ids if isinstance(ids, list) else [ids])]
    words = words_in(document, frozenset(token for token in ends if type(token) is int))
    return OtherTokenizer(words, lambda text: tuple(tokenizer.encode(text).ids))


def _settings(folder: Path, name: str = "tokenizer_config.json") -> Mapping[str, Any]:
    path = folder / name
    settings = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return settings if isinstance(settings, dict) else {}


class KnownVocabulary:
    """The vocabulary of a model whose right answers are known."""

    cleans_up = False

    def __init__(self, words: Words) -> None:
        self._words = words

    def decode(
        self,
        ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,  # noqa: ARG002  # this vocabulary adds no spaces
    ) -> str | None:
        if not all(0 <= token < len(self._words.pieces) for token in ids):
            return None
        skipped = self._words.special if skip_special_tokens else ()
        return self._words.text([token for token in ids if token not in skipped])


class RemoteTokenizer:
    """The server's own tokenizer. It knows only the texts that the server was asked to decode."""

    cleans_up = True
    """It is unknown whether the server removes spaces, so missing spaces before punctuation are accepted."""

    def __init__(self, texts: Mapping[tuple[Ids, bool], str]) -> None:
        """Initialize with the texts by token ids and `skip_special_tokens`."""
        self._texts = texts

    def decode(
        self,
        ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str | None:
        if not ids:
            return ""
        if not (skip_special_tokens or spaces_between_special_tokens):
            return None
        known = self._texts.get((tuple(ids), skip_special_tokens))
        return self._skipping(tuple(ids)) if known is None and skip_special_tokens else known

    def _skipping(self, ids: Ids) -> str | None:
        """Return the text without special tokens, for a server whose texts always include them."""
        spelled_out = self._texts.get((ids, False))
        if spelled_out is None or not _MAY_BE_SPECIAL.search(spelled_out):
            return spelled_out
        ordinary = tuple(token for token in ids if not self._is_special(token))
        if ordinary == ids:
            return None
        return self._texts.get((ordinary, False)) if ordinary else ""

    def _is_special(self, token: int) -> bool:
        return is_spelled_out(self._texts.get(((token,), False), ""))

    def doubtful(self) -> list[Ids]:
        """Return single ids that the server must decode, because they may be special tokens within a text.

        Ids of the shortest lists come first, because a few ids are then enough to complete a text.
        """
        spelled = (
            ids for (ids, skip), text in self._texts.items() if not skip and _MAY_BE_SPECIAL.search(text)
        )
        singles = dict.fromkeys((token,) for ids in sorted(spelled, key=len) for token in ids)
        return [ids for ids in singles if (ids, False) not in self._texts]

    def without_special(self) -> list[Ids]:
        """Return lists without special tokens that the server must decode, for texts that include special
        tokens.
        """
        spelled = (
            ids for (ids, skip), text in self._texts.items() if not skip and _MAY_BE_SPECIAL.search(text)
        )
        ordinary = dict.fromkeys(
            tuple(token for token in ids if not self._is_special(token)) for ids in spelled
        )
        return [ids for ids in ordinary if ids and (ids, False) not in self._texts]


def is_spelled_out(text: str) -> bool:
    """True if a single id with this text is a special token."""
    return _SPECIAL.fullmatch(text) is not None


def detokenizer_of(model: KnownModel | None, tokenizer: Tokenizer | None) -> Tokenizer | None:
    """Return the tokenizer whose texts may include special tokens: the vocabulary of a known model, or else
    the given tokenizer. The server itself is asked only for final texts without special tokens.
    """
    return KnownVocabulary(model.words) if model is not None else tokenizer


def ways_of(dialects: Iterable[Dialect]) -> list[Detokenize]:
    """Return the distinct detokenize endpoints of these dialects."""
    return list(dict.fromkeys(way for dialect in dialects if (way := dialect.detokenize) is not None))


def way_of(request: RequestHead) -> Detokenize | None:
    """Return the detokenize endpoint of a request. None for any other request."""
    return next((way for way in ways_of(load_dialects().values()) if way.is_asked_by(request)), None)


def tokenizer_of(exchanges: Iterable[ExchangeHead]) -> RemoteTokenizer | None:
    """Build the server's tokenizer from its answers. None if it decoded no text.

    The text of a joined list counts only if its parts, decoded alone, have the same texts. Some tokenizers
    decode the first id differently.
    """
    texts: dict[Question, str] = {}
    joined: dict[Question, str] = {}
    ways = ways_of(load_dialects().values())
    for exchange in exchanges:
        for way in ways:
            texts |= way.texts(exchange)
            joined |= way.joined_texts(exchange)
    both = joined.keys() & texts.keys()
    if both and all(joined[question] == texts[question] for question in both):
        texts = joined | texts
    return RemoteTokenizer(texts) if texts else None
