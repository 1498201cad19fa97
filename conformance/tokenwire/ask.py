"""What a request says, whatever a dialect calls it; and an ask, which a dialect renders into a request.

The fields stand here once: `Ask` is what a scenario wants, `record.Asked` what a request was read to want.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, StrEnum
from typing import Any, Final, Literal


class Budget(StrEnum):
    """How much a run may ask, smallest first; each holds all that the one before it holds."""

    QUICK = "quick"
    """Every kind of question once."""
    STANDARD = "standard"
    """And what takes many requests, or long ones."""
    SOAK = "soak"
    """And again, in more shapes: more intervals, more seeds, more neighbours."""

    def covers(self, least: Budget) -> bool:
        """Whether a run of this budget asks what takes `least` at least."""
        order = list(Budget)
        return order.index(self) >= order.index(least)


class _Omit(Enum):
    """The type of `OMIT`."""

    OMIT = "omit"


OMIT: Final = _Omit.OMIT
"""As a value in `Ask.raw`: the key is left out of the body."""


Kind = Literal["integer", "number", "boolean", "flag or number", "strings", "ids", "name", "biases"]


@dataclass(frozen=True)
class _Rule:
    """What a field of a request may hold, whatever a dialect calls it, and what it changes."""

    kind: Kind
    least: float | None = None
    """Below this nothing can be meant. -1 often means none, or all."""
    shapes: bool = True
    """Whether it shapes the tokens or their text; not what is reported of them, and when."""
    judged: bool = True
    """Whether a value of another kind has to be refused."""


def _rule(
    kind: Kind, *, least: float | None = None, shapes: bool = True, judged: bool = True
) -> dict[str, _Rule]:
    return {"rule": _Rule(kind, least, shapes, judged)}


@dataclass(frozen=True, kw_only=True)
class _Sampling:
    """How the tokens of a prompt are sampled, where they end, and how their text is made."""

    max_new_tokens: int | None = field(default=None, metadata=_rule("integer", least=0))
    """None: the server's default."""
    min_new_tokens: int | None = field(default=None, metadata=_rule("integer", least=0))
    ignore_eos: bool = field(default=False, metadata=_rule("boolean"))
    stop: tuple[str, ...] = field(default=(), metadata=_rule("strings"))
    stop_token_ids: tuple[int, ...] = field(default=(), metadata=_rule("ids"))
    stop_regex: tuple[str, ...] = field(default=(), metadata=_rule("strings"))
    no_stop_trim: bool = field(default=False, metadata=_rule("boolean"))
    skip_special_tokens: bool = field(default=True, metadata=_rule("boolean"))
    spaces_between_special_tokens: bool = field(default=True, metadata=_rule("boolean"))
    temperature: float | None = field(default=None, metadata=_rule("number", least=0))
    """None: the server's default."""
    seed: int | None = field(default=None, metadata=_rule("integer"))
    top_k: int | None = field(default=None, metadata=_rule("integer"))
    top_p: float | None = field(default=None, metadata=_rule("number", judged=False))
    min_p: float | None = field(default=None, metadata=_rule("number", judged=False))


@dataclass(frozen=True, kw_only=True)
class RequestFields(_Sampling):
    """What a request says beside its prompts: an ask is rendered from it, a request read back into it."""

    n: int = field(default=1, metadata=_rule("integer", least=1))
    stream: bool = field(default=False, metadata=_rule("boolean", shapes=False))
    stream_interval: int | None = field(default=None, metadata=_rule("integer", least=1, shapes=False))
    logit_bias: Mapping[int, float] = field(default_factory=dict, metadata=_rule("biases", judged=False))
    """What is added to the logits of some ids."""
    frequency_penalty: float = field(default=0.0, metadata=_rule("number", judged=False))
    """What is taken from the logit of an id for each time that it was sampled."""
    logprobs: bool = field(default=False, metadata=_rule("flag or number", shapes=False))
    logprob_start: int | None = field(default=None, metadata=_rule("integer", least=-1, shapes=False))
    """First prompt position whose logprob is wanted; None for none."""
    top_logprobs: int = field(default=0, metadata=_rule("integer", shapes=False))
    chosen_ids: tuple[int, ...] = field(default=(), metadata=_rule("ids", shapes=False))
    """Ids whose logprob is wanted at every position."""
    return_prompt_token_ids: bool = field(default=False, metadata=_rule("boolean", shapes=False))
    return_token_ids: bool = field(default=False, metadata=_rule("boolean", shapes=False))
    return_meta_info: bool = field(default=False, metadata=_rule("boolean", shapes=False))
    logprob_texts: bool = field(default=False, metadata=_rule("boolean", judged=False))
    """Entries of logprobs carry the text of their token, where that has to be asked for."""
    echo: bool = field(default=False, metadata=_rule("boolean"))
    """Repeat the prompt at the head of the answer."""
    usage: bool = field(default=False, metadata=_rule("boolean", shapes=False))
    """A stream ends with its usage, where that has to be asked for."""
    continuous_usage: bool = field(default=False, metadata=_rule("boolean", shapes=False))
    """Every event of a stream carries the usage so far."""
    request_id: str | None = field(default=None, metadata=_rule("name", shapes=False))


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON Schema of its arguments."""
    strict: bool = False
    """The server is asked to hold the arguments to it."""


@dataclass(frozen=True, kw_only=True)
class Ask(RequestFields):
    """An abstract request. A field at its default is not written into the body."""

    input_ids: tuple[tuple[int, ...], ...] = ()
    """The prompts as token ids, one tuple for each prompt."""
    text: tuple[str, ...] = ()
    """The prompts as text."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The prompt as chat messages."""
    tools: tuple[Tool, ...] = ()
    batch: bool = False
    """Send a list of prompts also where there is only one."""
    temperature: float | None = 0.0
    """Greedy unless said otherwise."""
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


RULES: Mapping[str, _Rule] = {field.name: field.metadata["rule"] for field in fields(RequestFields)}
SAMPLING = frozenset(field.name for field in fields(_Sampling))
"""The fields that the prompts of a batch may differ in."""
PENALTIES = ("logit_bias", "frequency_penalty")
"""Fields that stand in a body among penalties which have no field here."""

_WORDS = (
    *("sea", "river", "stone", "bird", "house", "tree", "road"),
    *("cloud", "hand", "light", "water", "field", "door"),
)


def in_words(ask: Ask) -> Ask:
    """The ask with a word for each id of its prompts, for an endpoint that takes texts and no ids.

    Prompts that begin alike still do.
    """
    texts = tuple(" ".join(_WORDS[token % len(_WORDS)] for token in ids) for ids in ask.input_ids)
    return replace(ask, input_ids=(), text=texts)
