"""Fields of a request, under one name for all dialects, and the asks that a dialect renders into requests.

Each field is declared once. `Ask` is the request that a scenario wants, `Asked` the request that was parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, StrEnum
from typing import Any, Final, Literal, NamedTuple

from tokenwire.constraint import Constraint, ToolRule


class Budget(StrEnum):
    """The size of a run, smallest first. Each budget includes all that the one before it includes."""

    QUICK = "quick"
    """Each kind of question once."""
    STANDARD = "standard"
    """Also questions that take many requests, or long ones."""
    SOAK = "soak"
    """The questions again with more intervals, seeds and neighbours."""

    def covers(self, least: Budget) -> bool:
        """True if a run of this budget includes questions that require at least `least`."""
        order = list(Budget)
        return order.index(self) >= order.index(least)


class _Omit(Enum):
    """The type of `OMIT`."""

    OMIT = "omit"


OMIT: Final = _Omit.OMIT
"""A value of `Ask.raw`: leave the key out of the body."""


Kind = Literal["integer", "number", "boolean", "flag or number", "strings", "ids", "name", "biases"]


@dataclass(frozen=True)
class _Rule:
    """The legal values of a request field in any dialect, and its effect."""

    kind: Kind
    least: float | None = None
    """The least legal value. Often -1 means "none" or "all"."""
    shapes: bool = True
    """True if the field changes the tokens or their text, not only the report about them."""
    judged: bool = True
    """True if the server must refuse a value of another type."""


def _rule(
    kind: Kind, *, least: float | None = None, shapes: bool = True, judged: bool = True
) -> dict[str, _Rule]:
    return {"rule": _Rule(kind, least, shapes, judged)}


@dataclass(frozen=True, kw_only=True)
class _Sampling:
    """Fields that control how a prompt's tokens are sampled, ended and made into text."""

    max_new_tokens: int | None = field(default=None, metadata=_rule("integer", least=0))
    """The most new tokens; None for the server's default."""
    min_new_tokens: int | None = field(default=None, metadata=_rule("integer", least=0))
    ignore_eos: bool = field(default=False, metadata=_rule("boolean"))
    stop: tuple[str, ...] = field(default=(), metadata=_rule("strings"))
    stop_token_ids: tuple[int, ...] = field(default=(), metadata=_rule("ids"))
    stop_regex: tuple[str, ...] = field(default=(), metadata=_rule("strings"))
    no_stop_trim: bool = field(default=False, metadata=_rule("boolean"))
    skip_special_tokens: bool = field(default=True, metadata=_rule("boolean"))
    spaces_between_special_tokens: bool = field(default=True, metadata=_rule("boolean"))
    temperature: float | None = field(default=None, metadata=_rule("number", least=0))
    """The temperature; None for the server's default."""
    seed: int | None = field(default=None, metadata=_rule("integer"))
    top_k: int | None = field(default=None, metadata=_rule("integer"))
    top_p: float | None = field(default=None, metadata=_rule("number", judged=False))
    min_p: float | None = field(default=None, metadata=_rule("number", judged=False))


@dataclass(frozen=True, kw_only=True)
class RequestFields(_Sampling):
    """Fields of a request other than its prompts. An ask is rendered from them; a request is parsed into
    them.
    """

    n: int = field(default=1, metadata=_rule("integer", least=1))
    stream: bool = field(default=False, metadata=_rule("boolean", shapes=False))
    stream_interval: int | None = field(default=None, metadata=_rule("integer", least=1, shapes=False))
    logit_bias: Mapping[int, float] = field(default_factory=dict, metadata=_rule("biases", judged=False))
    """Additions to the logits of some ids."""
    frequency_penalty: float = field(default=0.0, metadata=_rule("number", judged=False))
    """The amount subtracted from an id's logit for each time that it was sampled."""
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
    """True to include the token's text in logprob entries, where the server has an option for it."""
    echo: bool = field(default=False, metadata=_rule("boolean"))
    """Repeat the prompt at the head of the answer."""
    usage: bool = field(default=False, metadata=_rule("boolean", shapes=False))
    """True to end a stream with its usage, where the server has an option for it."""
    continuous_usage: bool = field(default=False, metadata=_rule("boolean", shapes=False))
    """True to include the usage so far in every event of a stream."""
    request_id: str | None = field(default=None, metadata=_rule("name", shapes=False))


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON Schema of its arguments."""
    strict: bool = False
    """True to make the server enforce the schema."""


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
    """True to send a list of prompts even for a single prompt."""
    temperature: float | None = 0.0
    """Greedy by default."""
    wrong: Mapping[str, Any] = field(default_factory=dict)
    """Fields with illegal values, written into the body as given."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """Merged into the rendered body last, object by object, for bodies that a dialect cannot write.

    `OMIT` as a value removes the key.
    """

    @property
    def prompts(self) -> int:
        """The number of prompts of the ask."""
        return max(len(self.input_ids), len(self.text), 1 if self.messages else 0)


RULES: Mapping[str, _Rule] = {field.name: field.metadata["rule"] for field in fields(RequestFields)}
SAMPLING = frozenset(field.name for field in fields(_Sampling))
"""The fields that may differ between the prompts of a batch."""
PENALTIES = ("logit_bias", "frequency_penalty")
"""Penalties in a body that are not fields of this class."""

_WORDS = (
    *("sea", "river", "stone", "bird", "house", "tree", "road"),
    *("cloud", "hand", "light", "water", "field", "door"),
)


def in_words(ask: Ask) -> Ask:
    """Return the ask with one word for each prompt id, for an endpoint that takes text and not ids.

    Prompts with a common beginning keep one.
    """
    texts = tuple(" ".join(_WORDS[token % len(_WORDS)] for token in ids) for ids in ask.input_ids)
    return replace(ask, input_ids=(), text=texts)


@dataclass(frozen=True)
class SentField:
    """A field of a request as it was sent, legal or not."""

    wire_name: str
    values: tuple[Any, ...]
    """JSON values as sent: one value, or one for each item if the field is in a list of objects."""


@dataclass(frozen=True)
class Wanted:
    """An output that a request enables and that is not a field of the record, as its dialect lists it."""

    wire_name: str
    """The request field that enables it."""
    names: tuple[str, ...]
    """The possible names of it in an emission. Every choice must carry one of them."""
    pointers: tuple[str, ...] = ()
    """Possible pointers to it outside the choices, in the document or in any event."""


class Turn(NamedTuple):
    """The request of one turn of a session."""

    after: str
    """The id of the request that this turn continues; empty if it continues the latest turn."""
    offset: int
    """The number of ids taken over from that request; 0 means all."""
    input_ids: tuple[int, ...]
    session: str = ""
    """The id of the session."""


@dataclass(frozen=True, kw_only=True)
class Asked(RequestFields):
    """The fields that were parsed from a request, in the terms of the abstract record.

    A field has its default if neither the request nor the dialect sets it.
    """

    prompts: int = 1
    batch: bool = False
    """True if the answer is a list of choices (a batch of prompts, or n > 1)."""
    input_ids: tuple[tuple[int, ...], ...] | None = None
    """The token ids sent, one tuple for each prompt; None for a text prompt or messages."""
    texts: tuple[str, ...] = ()
    """The prompts that were sent as text; empty for ids and messages."""
    text_prompt: bool = False
    """True if text or messages were sent, perhaps beside input_ids."""
    budgets: tuple[int, ...] = ()
    """The budget of each prompt, if they differ; `max_new_tokens` is then None."""
    by_prompt: tuple[Asked, ...] = ()
    """The request of each prompt, if prompts are sampled or stopped differently; see `of`."""
    greedy: bool = False
    chosen_in_top: tuple[int, ...] = ()
    """Ids whose logprobs are listed after the sampled one, in place of the likeliest."""
    wanted: tuple[Wanted, ...] = ()
    """Other outputs that were requested."""
    turn: Turn | None = None
    """The turn of a session; None if it is not a turn, or if its prompt is not known."""
    constraints: tuple[Constraint, ...] = ()
    """The languages that the text of each choice must belong to. Several of them contradict each other."""
    tools: ToolRule | None = None
    """The rules for tool calls; None if the request does not offer tools."""
    media: bool = False
    """True if the prompt includes images or other media."""
    truncate: int | None = None
    """The most tokens kept of each input; -1 keeps as many as fit into the context."""
    most: int | None = None
    """The most results in the answer, best first."""
    rank: int | None = None
    """The data-parallel rank that must run the request; None for any."""
    model: str = ""
    """The model's name in the request; empty if it is missing."""
    adapter: SentField | None = None
    """The field that names an adapter, or the adapter of each prompt."""
    uniform: bool = True
    """True if every prompt has the same metadata. If False, this class cannot describe the request."""
    sent: Mapping[str, SentField] = field(default_factory=dict)
    """The values in the body by the names of fields here and in `Ask`."""
    key: str = ""
    """A key that is equal for requests that must yield the same record.

    It covers all that shapes the result, and not the form of delivery. It is empty if the result need not
    repeat (sampling without a seed) or the request could not be parsed.
    """
    prompt_key: str = ""
    """Canonical JSON of the model and the prompt, in any of its forms; empty if they cannot be parsed."""
    cache_key: str = ""
    """JSON of the salt and key that partition the server's cache; empty without them."""
    ids_key: str = ""
    """A key that is equal for greedy requests with the same input_ids, budget and stops, on any endpoint.
    They ask for one sample."""
    other_sampling: str = ""
    """JSON of the parameters that shape the tokens without truncating the distribution: penalties, bias,
    grammar.

    It is empty without any. Requests that differ in it are never compared.
    """
    form: str = ""
    """JSON of other fields that change how tokens are reported, not which; empty without any."""
    constrained: bool = False
    """True if the tokens are shaped by something outside this class, such as a grammar."""

    def __getstate__(self) -> dict[str, Any]:
        """Return only the fields that differ from their defaults, because many requests are pickled and most
        set few fields.

        After unpickling, the defaults of the class fill the rest.
        """
        return {name: value for name, value in vars(self).items() if not _is_default(name, value)}

    def of(self, choice: int) -> Asked:
        """Return the request as it applies to one choice, because the prompts of a batch may differ."""
        prompt = choice // max(self.n, 1)
        return self.by_prompt[prompt] if prompt < len(self.by_prompt) else self

    def budget(self, choice: int) -> int | None:
        """Return the most tokens of a choice; None if the request does not limit them."""
        prompt = choice // max(self.n, 1)
        return self.budgets[prompt] if prompt < len(self.budgets) else self.max_new_tokens

    @property
    def likeliest(self) -> bool:
        """True if the model's likeliest ids are sampled, without randomness, bias or penalty."""
        return self.greedy and not self.other_sampling

    @property
    def stoppable(self) -> bool:
        """True if a choice may end before its budget: at an end id, a stop, or a constraint that is met."""
        demanded = self.tools is not None and self.tools.demand == "required"
        stops = self.stop or self.stop_token_ids or self.stop_regex
        return bool(not self.ignore_eos or stops or self.constraints or demanded)

    @property
    def truncated(self) -> bool:
        """True if sampling excludes a part of the distribution."""
        return (self.top_k or 0) > 0 or (self.top_p or 1.0) < 1.0 or (self.min_p or 0.0) > 0.0


def _is_default(name: str, value: object) -> bool:
    """True if a parsed field has the value and type of its default."""
    default = getattr(Asked, name, ...)  # the class does not have a mutable default
    return type(value) is type(default) and value == default
