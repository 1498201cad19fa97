"""The vocabularies of a parrot, in the format of `tokenizer.json`.

This module learns them from a text, without a library.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from itertools import groupby, pairwise
from typing import Any

_LONGEST_CHARACTER = 8
"""The most ids of one character, including special tokens within it."""
SIZE = 768
"""The number of ids in each vocabulary. It is a multiple of the group size, 32."""
_MESSAGE_END = "<|im_end|>"
"""A second token that ends an answer.

Some engines recognize the token by its name, others only if the model's files list it as an end.
"""
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Markers of reasoning and tool calls, for the parsers of servers.

The vocabulary has the markers as ordinary tokens, not as special tokens.
"""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% set thought = message['reasoning_content'] or message['reasoning'] %}"
    "{% if thought %}<think>\n{{ thought }}\n</think>\n\n{% endif %}"
    "{% if message['content'] or not message['tool_calls'] %}{{ message['content'] }}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}{% set given = call['function']['arguments'] %}"
    "<tool_call>{{ call['function']['name'] }}{% if given is mapping %}"
    "{% for key in given %} {{ key }}={{ given[key] }}{% endfor %}{% else %} {{ given }}{% endif %}"
    "</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The chat template of a parrot.

The template writes everything in a conversation, and only appends: a prompt begins with the prompt of the
previous turn. The template writes the arguments of a call key by key, so the server must pass the arguments
as an object.
"""

LESSON = """\
The parrot says again what it was told. A server sends each token as soon as it is sampled, and whoever
reads the stream puts the pieces together: the text must be the same, wherever the stream was cut,
between words, within a word, in the middle of a character. What was sent is never changed, and what is
finished stays finished. Every id has one entry in every series. The answer ends with a stop string, with
the end of the text, or when its budget is used up; then it says why. There is nothing that comes twice,
and nothing that is lost.
system user assistant tool function content message prompt answer question stop length abort error usage
choice
The quick brown fox jumps over the lazy dog, and the weather in Paris is 21 degrees. Human: Assistant:
User:
<tool_call>{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}</tool_call>
<think>First I think about the question, then I give the answer.</think>
def step(self) -> list: return [token for token in output_ids if token is not None]
{"text": "hello", "output_ids": [1, 2, 3], "meta_info": {"finish_reason": null, "completion_tokens":
128}}
0 1 2 3 4 5 6 7 8 9 10 11 12 16 20 32 50 64 100 101 128 151 256 512 1000 1024 2048 2026 4096
one two three four five six seven eight nine ten eleven twelve morning evening river mountain garden
window
about after again all also always another any because before being below both but can could day different
down each even every few find first for from further good great had hand have here high home how house
into its just keep kind know large last left less light line little long look made make many may more
most much must name near need new next night number of often old only open other our out over own page
part people place play point right room same sea second see set she should show side small so some sound
still such take tell than thank their them these they thing this those time together too tree turn under
until very want water way we well were what when where which while white whole will with without work
world would write year you young your zero
Größe, naïve café, señor, Straße, žluťoučký kůň, ελληνικά, русский язык и слово, עברית, العربية, हिन्दी,
ไทย.
日本語の文章は一文字ずつ届く。文字化けは困る。漢字かな交じり文。中文的字符由三个字节组成。
한국어 문장도 나누어 전달된다。
😀😃😄🎉🎊🚀👍🏽👩‍💻🇯🇵❤️ 😀😀 🎉🎉 🚀🚀
"""
"""The text from which merges are learned.

Most of its words become one token; CJK and emoji are often split.
"""

_WORDS = re.compile(r" ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+")
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The regular expression by which Qwen2 splits a text into words.

Current versions of transformers use it, and the NFC normalizer, for every Qwen2 model, whatever
`tokenizer.json` contains. So our `tokenizer.json` contains both.
"""


class Vocabulary(StrEnum):
    """The kinds of vocabularies that a parrot can have."""

    BYTE_LEVEL = "byte-level"
    """Byte-level BPE. Each marker of tools and reasoning is one token."""
    SPLIT_MARKERS = "split-markers"
    """Byte-level BPE. Each marker of tools and reasoning is several tokens."""
    SENTENCEPIECE = "sentencepiece"
    """BPE of characters, as in SentencePiece. A character without a piece becomes its bytes."""


@dataclass(frozen=True)
class TokenizerFiles:
    """The files of a tokenizer, and the ids that the model configuration must contain."""

    files: Mapping[str, Any]
    """The content of each JSON file, by file name."""
    bos: int | None
    eos: int
    pad: int | None
    ends: tuple[int, ...] = ()
    """The ids that end an answer in addition to `eos`."""


@dataclass(frozen=True)
class Words:
    """A vocabulary: the bytes of each id, and the ids with a special meaning."""

    pieces: tuple[bytes, ...]
    special: frozenset[int]
    """Ids that are omitted if a text is decoded without special tokens."""
    ends: frozenset[int]
    """Ids that end an answer."""
    fallback: frozenset[int] = frozenset()
    """Ids of single bytes.

    A run of such ids is decoded as a whole. If the run is not valid UTF-8, all its bytes become invalid
    characters.
    """

    @cached_property
    def _ids(self) -> Mapping[bytes, int]:
        """The id of each piece.

        If a piece of one byte also has an ordinary id, the ordinary id is preferred to the id of the byte.
        """
        order = sorted(enumerate(self.pieces), key=lambda row: (row[0] not in self.fallback, row[0]))
        return {piece: token for token, piece in order if token not in self.special}

    @cached_property
    def other_ends(self) -> frozenset[int]:
        """The ids that end an answer in engines that ignore the message end that the model's files list."""
        return self.ends ^ {token for token in self.special if self.pieces[token] == _MESSAGE_END.encode()}

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of ids, decoded at once as `tokenizer.json` defines it."""
        text = ""
        for single, run in groupby(ids, self.fallback.__contains__):
            spelled = b"".join(self.pieces[token] for token in run)
            shown = spelled.decode("utf-8", "replace")
            text += "\ufffd" * len(spelled) if single and "\ufffd" in shown else shown
        return text

    def longest(self, text: bytes) -> int:
        """Return the id of the longest piece with which the text begins. Every byte has a piece."""
        longest = max(map(len, self.pieces))
        return next(self._ids[text[:size]] for size in range(longest, 0, -1) if text[:size] in self._ids)

    def unfinished(self, ids: Sequence[int], *, skip: bool) -> bytes:
        """Return the bytes of the incomplete character at the end of the text of ids.

        Empty if the last character is complete.
        """
        decoder, last = codecs.getincrementaldecoder("utf-8")("replace"), ids[-_LONGEST_CHARACTER:]
        for token in last:
            decoder.decode(b"" if skip and token in self.special else self.pieces[token])
        return decoder.getstate()[0]


def crossing(words: Words) -> tuple[tuple[int, ...], str] | None:
    """Return ids and their text.

    The first id has a character and the beginning of the next character. Both characters are from `LESSON`.
    The widest possible first character is chosen. Return None if no id has this property.
    """
    lesson, found = LESSON.encode(), list[tuple[int, int, bytes]]()
    for token, piece in enumerate(words.pieces):
        whole, place = piece.decode("utf-8", "ignore"), lesson.find(piece)
        width = len(whole.encode())
        if len(whole) == 1 and place >= 0 and piece.startswith(whole.encode()) and width < len(piece):
            found.append((width, token, lesson[place:]))
    if not found:
        return None
    _, token, rest = max(found)
    text = rest[:_LONGEST_CHARACTER].decode("utf-8", "ignore")[:2]
    behind = text.encode()[len(words.pieces[token]) :]
    return (token, *(words.longest(bytes([byte])) for byte in behind)), text


@cache
def words_of(kind: Vocabulary) -> Words:
    """Return one of our vocabularies."""
    written = tokenizer_files(kind, 0)
    words = words_in(written.files["tokenizer.json"], frozenset({written.eos, *written.ends}))
    assert words is not None, "our own tokenizers are read"
    return words


def words_in(document: Mapping[str, Any], ends: frozenset[int]) -> Words | None:
    """Return the vocabulary in a `tokenizer.json`.

    Return None if the text of ids is not the concatenation of the bytes of the ids.
    """
    decoder = document.get("decoder") or {}
    steps = [decoder, *decoder.get("decoders", ())]
    kinds = [step.get("type") for step in steps]
    byte_level, fallback = "ByteLevel" in kinds, "ByteFallback" in kinds
    if byte_level == fallback or "Strip" in kinds or "Metaspace" in kinds:
        return None
    byte_of = {letter: bytes([byte]) for byte, letter in enumerate(byte_letters())}
    added = {token["id"]: token for token in document["added_tokens"]}

    def bytes_of(token: int, piece: str) -> bytes:
        if token in added:
            return piece.encode()
        if byte_level:
            return b"".join(byte_of.get(letter, letter.encode()) for letter in piece)
        if found := re.fullmatch("<0x([0-9A-F]{2})>", piece):
            return bytes.fromhex(found[1])
        return piece.replace("▁", " ").encode()

    known = pieces_of(document)
    spelled = {token: bytes_of(token, piece) for token, piece in known}
    spelled |= {token: row["content"].encode() for token, row in added.items()}
    pieces = tuple(spelled.get(token, b"") for token in range(max(spelled) + 1))
    singles = {token for token, piece in known if re.fullmatch("<0x[0-9A-F]{2}>", piece)} if fallback else ()
    special = frozenset(token for token, row in added.items() if row["special"])
    return Words(pieces, special, ends, frozenset(singles))


def pieces_of(document: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return the pairs of id and piece in a `tokenizer.json`, without added tokens."""
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, dict):
        return [(token, piece) for piece, token in vocabulary.items()]
    return [(position, row[0]) for position, row in enumerate(vocabulary)]


def tokenizer_files(kind: Vocabulary, longest: int) -> TokenizerFiles:
    """Return the files of one of our tokenizers. `longest`: the maximum length of a text, in tokens."""
    added: tuple[str, ...]
    if kind is Vocabulary.SENTENCEPIECE:
        added = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
        document = _sentencepiece(added)
        roles = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}
    else:
        added = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
        document = _byte_level(added, MARKERS if kind is Vocabulary.BYTE_LEVEL else ())
        roles = {"bos_token": added[0], "eos_token": added[0], "pad_token": added[3]}
    vocabulary = document["model"]["vocab"]
    document["added_tokens"] = [
        {
            "id": vocabulary[content],
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": content in added,
        }
        for content in (*added, *MARKERS)
        if content in vocabulary
    ]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": longest,
        "chat_template": CHAT_TEMPLATE,
        **roles,
    }
    ids = {role: vocabulary[token] for role, token in roles.items()}
    files = {"tokenizer.json": document, "tokenizer_config.json": settings}
    ends = (vocabulary[_MESSAGE_END],)
    return TokenizerFiles(files, ids["bos_token"], ids["eos_token"], ids["pad_token"], ends)


def byte_letters() -> tuple[str, ...]:
    """Return the character by which a byte-level vocabulary writes each byte.

    A printable Latin-1 byte is its own character. The others are characters from U+0100 on.
    """
    hidden = iter(range(0x100, 0x200))
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return tuple(chr(byte if byte in printable else next(hidden)) for byte in range(256))


def _byte_level(special: Sequence[str], markers: Sequence[str]) -> dict[str, Any]:
    letters = byte_letters()
    words = tuple("".join(letters[byte] for byte in word.encode()) for word in _WORDS.findall(LESSON))
    merges = _merges(words, SIZE - len(special) - len(letters) - len(markers))
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": _QWEN_WORDS}, "behavior": "Isolated", "invert": False}
    return _document(
        special,
        merges,
        (*letters, *markers),
        normalizer={"type": "NFC"},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [split, step]},
        decoder=step,
    )


def _sentencepiece(special: Sequence[str]) -> dict[str, Any]:
    words = [("▁" + word.strip()) if word.strip() else word for word in _WORDS.findall(LESSON)]
    often = [
        letter for letter, count in Counter("".join(words)).items() if count > 1 and not letter.isspace()
    ]
    single = (*sorted(often), *(f"<0x{byte:02X}>" for byte in range(256)), *MARKERS)
    known = tuple(word for word in words if set(word) <= set(often))
    merges = _merges(known, SIZE - len(special) - len(single))
    space = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    decoders = [space, {"type": "ByteFallback"}, {"type": "Fuse"}]
    normalizer = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    decoder = {"type": "Sequence", "decoders": decoders}
    document = _document(special, merges, single, normalizer=normalizer, decoder=decoder)
    document["model"] |= {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    return document


def _document(
    special: Sequence[str], merges: Sequence[tuple[str, str]], single: Sequence[str], **parts: Any
) -> dict[str, Any]:
    """Return the content of `tokenizer.json`.

    Merged pieces follow the special tokens, so that small ids are readable words.
    """
    pieces = (*special, *map("".join, merges), *single)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        **parts,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {piece: place for place, piece in enumerate(pieces)},
            "merges": list(map(list, merges)),
        },
    }


@cache
def _merges(words: tuple[str, ...], count: int) -> tuple[tuple[str, str], ...]:
    """Return `count` merges, the most frequent pair first.

    Equally frequent pairs are ordered by length, then alphabetically.
    """
    known = [(list(word), number) for word, number in sorted(Counter(words).items())]
    pairs: Counter[tuple[str, str]] = Counter()
    for pieces, number in known:
        for pair in pairwise(pieces):
            pairs[pair] += number
    merges: list[tuple[str, str]] = []
    taken = set(MARKERS)
    while len(merges) < count:
        most, often = 1, list[tuple[str, str]]()
        for pair, number in pairs.items():
            if number < most or "".join(pair) in taken:
                continue
            if number > most:
                most, often = number, []
            often.append(pair)
        left, right = min(often, key=lambda pair: (len("".join(pair)), pair))
        taken.add(left + right)
        merges.append((left, right))
        for pieces, number in known:
            if (left, right) not in pairwise(pieces):
                continue
            for pair in pairwise(pieces):
                pairs[pair] -= number
            for place in range(len(pieces) - 2, -1, -1):
                if pieces[place : place + 2] == [left, right]:
                    pieces[place : place + 2] = [left + right]
            for pair in pairwise(pieces):
                pairs[pair] += number
    return tuple(merges)
