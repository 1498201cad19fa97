"""An ask: what a scenario wants of a server, in the words of the abstract record.

A dialect renders an ask into the request of one server family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final


class Omit(Enum):
    """The type of `OMIT`."""

    OMIT = "omit"


OMIT: Final = Omit.OMIT
"""As a value in `Ask.raw`: the key is left out of the body."""


@dataclass(frozen=True)
class Ask:
    """An abstract request. A field at its default is not written into the body."""

    input_ids: tuple[tuple[int, ...], ...] = ()
    """The prompts as token ids, one tuple for each prompt."""
    text: tuple[str, ...] = ()
    """The prompts as text."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The prompt as chat messages."""
    batch: bool = False
    """Send a list of prompts also where there is only one."""
    max_new_tokens: int | None = None
    """None: the server's default."""
    n: int = 1
    stream: bool = False
    stream_interval: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    min_new_tokens: int | None = None
    ignore_eos: bool = False
    temperature: float | None = 0.0
    """Greedy unless said otherwise; None: the server's default."""
    seed: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    logprobs: bool = False
    logprob_start: int | None = None
    """First prompt position whose logprob is wanted; None for none."""
    top_logprobs: int = 0
    chosen_ids: tuple[int, ...] = ()
    """Ids whose logprob is wanted at every position."""
    return_prompt_token_ids: bool = False
    return_token_ids: bool = False
    return_meta_info: bool = False
    logprob_texts: bool = False
    """Entries of logprobs carry the text of their token, where that has to be asked for."""
    echo: bool = False
    """Repeat the prompt at the head of the answer."""
    usage: bool = False
    """Ask a stream to end with its usage, where that has to be asked for."""
    continuous_usage: bool = False
    """Ask every event of a stream for the usage so far."""
    request_id: str | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """What is added to the logits of some ids."""
    frequency_penalty: float = 0.0
    """What is taken from the logit of an id for each time that it was sampled."""
    wrong: Mapping[str, Any] = field(default_factory=dict)
    """Fields of an ask with values that they must not have, written as they are."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """Laid over the rendered body last, object by object, for requests that no dialect would write.

    `OMIT` as a value removes the key.
    """

    @property
    def prompts(self) -> int:
        """How many prompts the ask holds."""
        return max(len(self.input_ids), len(self.text), 1 if self.messages else 0)


_WORDS = (
    "sea",
    "river",
    "stone",
    "bird",
    "house",
    "tree",
    "road",
    "cloud",
    "hand",
    "light",
    "water",
    "field",
    "door",
)


def in_words(ask: Ask) -> Ask:
    """The ask with a word for each id of its prompts, for an endpoint that takes texts and no ids.

    Prompts that begin alike still do.
    """
    texts = tuple(" ".join(_WORDS[token % len(_WORDS)] for token in ids) for ids in ask.input_ids)
    return replace(ask, input_ids=(), text=texts)
