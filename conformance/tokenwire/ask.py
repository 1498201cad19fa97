"""Fields of a request, with one name for all dialects, and the asks from which a dialect renders requests.

Each field is declared once. `Ask` describes a request that a scenario sends. `Asked` describes a request that
was parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, StrEnum
from typing import Any, Final, Literal, NamedTuple

from tokenwire.constraint import Constraint, ToolRule


class Budget(StrEnum):
    """The size of a run. The smallest size is first, and each size includes all smaller sizes."""

    QUICK = "quick"
    """Scenarios that send each kind of request once."""
    STANDARD = "standard"
    """The scenarios of `QUICK`, and scenarios that send many requests or long requests."""
    SOAK = "soak"
    """The scenarios of `STANDARD`, repeated with more stream intervals, seeds and concurrent requests."""

    def covers(self, least: Budget) -> bool:
        """True if a run of this size includes scenarios that need at least the size `least`."""
        order = list(Budget)
        return order.index(self) >= order.index(least)


class _Omit(Enum):
    """The type of `OMIT`."""

    OMIT = "omit"


OMIT: Final = _Omit.OMIT
"""A value in `Ask.raw` that removes the key from the body."""


Kind = Literal["integer", "number", "boolean", "flag or number", "strings", "words", "ids", "name", "biases"]


@dataclass(frozen=True)
class _Rule:
    """The valid values of a request field in all dialects, and its effect on the answer."""

    kind: Kind
    least: float | None = None
    """The smallest valid value. It is -1 for fields in which -1 means "none" or "all"."""
    shapes: bool = True
    """True if the field changes the tokens or their text.

    False if it changes only the values that the answer reports about the tokens.
    """
    judged: bool = True
    """True if the server must refuse a value of another type."""


def _rule(
    kind: Kind, *, least: float | None = None, shapes: bool = True, judged: bool = True
) -> dict[str, _Rule]:
    return {"rule": _Rule(kind, least, shapes, judged)}


@dataclass(frozen=True, kw_only=True)
class _Sampling:
    """Fields that control how the tokens of a prompt are sampled, how they end, and how they become text."""

    max_new_tokens: int | None = field(default=None, metadata=_rule("integer", least=0))
    """The maximum number of new tokens. None for the server's default."""
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
    """All fields of a request except its prompts.

    The values are rendered from an ask, or parsed from a request.
    """

    n: int = field(default=1, metadata=_rule("integer", least=1))
    stream: bool = field(default=False, metadata=_rule("boolean", shapes=False))
    stream_interval: int | None = field(default=None, metadata=_rule("integer", least=1, shapes=False))
    logit_bias: Mapping[int, float] = field(default_factory=dict, metadata=_rule("biases", judged=False))
    """Numbers that are added to the logits of some ids."""
    frequency_penalty: float = field(default=0.0, metadata=_rule("number", judged=False))
    """The number that is subtracted from an id's logit for each time that the id was sampled."""
    allowed_token_ids: tuple[int, ...] = field(default=(), metadata=_rule("ids", judged=False))
    """The only ids that may be sampled. Empty if all ids may be sampled."""
    bad_words: tuple[str, ...] = field(default=(), metadata=_rule("words", judged=False))
    """Words whose tokens may not be sampled."""
    logprobs: bool = field(default=False, metadata=_rule("flag or number", shapes=False))
    logprob_start: int | None = field(default=None, metadata=_rule("integer", least=-1, shapes=False))
    """The first prompt position whose logprob is requested. None requests no prompt logprobs."""
    top_logprobs: int = field(default=0, metadata=_rule("integer", shapes=False))
    chosen_ids: tuple[int, ...] = field(default=(), metadata=_rule("ids", shapes=False))
    """Ids whose logprobs are requested at every position."""
    return_prompt_token_ids: bool = field(default=False, metadata=_rule("boolean", shapes=False))
    return_token_ids: bool = field(default=False, metadata=_rule("boolean", shapes=False))
    return_meta_info: bool = field(default=False, metadata=_rule("boolean", shapes=False))
    logprob_texts: bool = field(default=False, metadata=_rule("boolean", judged=False))
    """True to include the token's text in logprob entries, if the server has this option."""
    echo: bool = field(default=False, metadata=_rule("boolean"))
    """True to repeat the prompt at the beginning of the text."""
    usage: bool = field(default=False, metadata=_rule("boolean", shapes=False))
    """True to end a stream with a usage object, if the server has this option."""
    continuous_usage: bool = field(default=False, metadata=_rule("boolean", shapes=False))
    """True to include in every event of a stream the token counts up to this event."""
    request_id: str | None = field(default=None, metadata=_rule("name", shapes=False))


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON Schema of the function's arguments."""
    strict: bool = False
    """True if the server must enforce the schema."""


@dataclass(frozen=True, kw_only=True)
class Ask(RequestFields):
    """An abstract request. A field with its default value is left out of the body."""

    input_ids: tuple[tuple[int, ...], ...] = ()
    """The prompts as token ids, with one tuple for each prompt."""
    text: tuple[str, ...] = ()
    """The prompts as text."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """A single prompt as chat messages."""
    tools: tuple[Tool, ...] = ()
    batch: bool = False
    """True to send a list of prompts even for a single prompt."""
    temperature: float | None = 0.0
    """The temperature. The default 0.0 means greedy sampling."""
    wrong: Mapping[str, Any] = field(default_factory=dict)
    """Fields with invalid values, which are written into the body unchanged."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """A JSON object that is merged into the rendered body last, for bodies that a dialect cannot render.

    The value `OMIT` removes a key.
    """

    @property
    def prompts(self) -> int:
        """The number of prompts."""
        return max(len(self.input_ids), len(self.text), 1 if self.messages else 0)


RULES: Mapping[str, _Rule] = {field.name: field.metadata["rule"] for field in fields(RequestFields)}
SAMPLING = frozenset(field.name for field in fields(_Sampling))
"""The fields that may differ between the prompts of a batch."""
PENALTIES = ("logit_bias", "frequency_penalty")
"""Fields that shift logits, under their names in a body."""
BANS = ("allowed_token_ids", "bad_words")
"""Fields that exclude ids, under their names in a body."""

_WORDS = (
    *("sea", "river", "stone", "bird", "house", "tree", "road"),
    *("cloud", "hand", "light", "water", "field", "door"),
)


def in_words(ask: Ask) -> Ask:
    """Return the ask with one word for each prompt id, for an endpoint that accepts only text.

    Prompts that begin with the same ids also begin with the same words.
    """
    texts = tuple(" ".join(_WORDS[token % len(_WORDS)] for token in ids) for ids in ask.input_ids)
    return replace(ask, input_ids=(), text=texts)


@dataclass(frozen=True)
class SentField:
    """A field of a request as it was sent. Its value may be invalid."""

    wire_name: str
    values: tuple[Any, ...]
    """The JSON values that were sent. There are several values if the field is in a list of objects."""


@dataclass(frozen=True)
class Wanted:
    """An output that a request enables and that is not a field of the record. Its dialect lists it."""

    wire_name: str
    """The request field that enables the output."""
    names: tuple[str, ...]
    """The possible names of the output in an emission. Every choice must have one of them."""
    pointers: tuple[str, ...] = ()
    """JSON pointers to the output outside of the choices, in the document or in an event."""


class Turn(NamedTuple):
    """The request of one turn of a session."""

    after: str
    """The id of the request that this turn continues. Empty if the turn continues the latest turn."""
    offset: int
    """The number of ids that this turn takes from the request `after`. 0 means all ids."""
    input_ids: tuple[int, ...]
    session: str = ""
    """The id of the session."""


@dataclass(frozen=True, kw_only=True)
class Asked(RequestFields):
    """The fields that were parsed from a request, with the names of the abstract record.

    A field that neither the request nor the dialect sets has its default value.
    """

    prompts: int = 1
    batch: bool = False
    """True if the answer is a list of choices, because of several prompts or n > 1."""
    input_ids: tuple[tuple[int, ...], ...] | None = None
    """The token ids that were sent, with one tuple for each prompt. None if text or messages were sent."""
    texts: tuple[str, ...] = ()
    """The prompts that were sent as text. Empty if ids or messages were sent."""
    text_prompt: bool = False
    """True if text or messages were sent, even if input_ids were sent as well."""
    budgets: tuple[int, ...] = ()
    """The token limit of each prompt, if the prompts have different limits.

    In this case `max_new_tokens` is None.
    """
    by_prompt: tuple[Asked, ...] = ()
    """The request for each prompt, if sampling or stops differ between prompts. See `of`."""
    greedy: bool = False
    chosen_in_top: tuple[int, ...] = ()
    """Ids whose logprobs the server reports after the logprob of the sampled id, in place of the top
    logprobs.
    """
    prompt_chosen: tuple[tuple[int, ...], ...] = ()
    """Ids whose logprobs are requested at positions of the prompt: a row for each position after
    `prompt_chosen_start`. -1 fills up a row.
    """
    prompt_chosen_start: int = 0
    wanted: tuple[Wanted, ...] = ()
    """Further outputs that the request enables."""
    turn: Turn | None = None
    """The turn of a session. None if the request is not a turn, or if its prompt is unknown."""
    constraints: tuple[Constraint, ...] = ()
    """Constraints that the text of each choice must satisfy. Several constraints contradict each other."""
    tools: ToolRule | None = None
    """The rules for tool calls; None if the request does not offer tools."""
    media: bool = False
    """True if the prompt includes images or other media."""
    truncate: int | None = None
    """The maximum number of tokens that the server keeps of each input. -1 keeps as many as fit into the
    context.
    """
    most: int | None = None
    """The maximum number of results in the answer. The server returns only the best results."""
    rank: int | None = None
    """The data-parallel rank that must run the request. None for any rank."""
    model: str = ""
    """The name of the model in the request. Empty if the request names no model."""
    adapter: SentField | None = None
    """The request field that names an adapter, or one adapter for each prompt."""
    uniform: bool = True
    """True if all prompts of the request enable the same metadata.

    If False, this class cannot describe the request.
    """
    sent: Mapping[str, SentField] = field(default_factory=dict)
    """The values in the body, by the names of the fields of this class and of `Ask`."""
    key: str = ""
    """A key that is equal for requests that must have the same answer.

    The key covers everything that influences the content, but not the delivery mode. The key is empty if the
    answer may differ each time (sampling without a seed), or if the request could not be parsed.
    """
    prompt_key: str = ""
    """The model and the prompt as canonical JSON. Empty if the model or the prompt cannot be parsed."""
    cache_key: str = ""
    """The salt and the key that divide the server's cache, as JSON. Empty if the request has neither."""
    ids_key: str = ""
    """A key that is equal for greedy requests with the same input_ids, token limit and stops at any endpoint.

    The key is empty for requests for several choices.
    """
    other_sampling: str = ""
    """Parameters that influence the tokens without truncating the distribution, as JSON: penalties, biases,
    grammars.

    Empty if there are none. Requests with different parameters are never compared.
    """
    form: str = ""
    """Further fields that change how tokens are reported, but not the tokens, as JSON. Empty if there are
    none.
    """
    constrained: bool = False
    """True if something outside of this class influences the tokens, such as a grammar."""

    def __getstate__(self) -> dict[str, Any]:
        """Return only the fields that differ from their defaults, because many requests are pickled and most
        of them set few fields. After unpickling, the class supplies the defaults.
        """
        return {name: value for name, value in vars(self).items() if not _is_default(name, value)}

    def of(self, choice: int) -> Asked:
        """Return the request as it applies to one choice. The prompts of a batch may have
        different fields.
        """
        prompt = choice // max(self.n, 1)
        return self.by_prompt[prompt] if prompt < len(self.by_prompt) else self

    def budget(self, choice: int) -> int | None:
        """Return the maximum number of tokens of a choice. None if the request has no limit."""
        prompt = choice // max(self.n, 1)
        return self.budgets[prompt] if prompt < len(self.budgets) else self.max_new_tokens

    @property
    def likeliest(self) -> bool:
        """True if the model's most likely ids are sampled, without randomness, bias or penalty."""
        return self.greedy and not self.other_sampling

    @property
    def stoppable(self) -> bool:
        """True if a choice may end before its budget: at an end-of-sequence id, a stop, or the end of a
        constraint.
        """
        demanded = self.tools is not None and self.tools.demand == "required"
        stops = self.stop or self.stop_token_ids or self.stop_regex
        return bool(not self.ignore_eos or stops or self.constraints or demanded)

    @property
    def truncated(self) -> bool:
        """True if sampling excludes some ids, by top_k, top_p or min_p."""
        return (self.top_k or 0) > 0 or (self.top_p or 1.0) < 1.0 or (self.min_p or 0.0) > 0.0


def _is_default(name: str, value: object) -> bool:
    """True if a parsed field has the value and the type of its default."""
    default = getattr(Asked, name, ...)  # dataclasses set no attribute for a mutable default
    return type(value) is type(default) and value == default
