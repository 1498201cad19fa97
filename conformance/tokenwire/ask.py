"""The fields of a request, by one name for all dialects; and asks, which a dialect renders into requests.

Each field is declared once. `Ask` is what a scenario wants, `Asked` what a request was parsed to want.
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
    """Every kind of question once."""
    STANDARD = "standard"
    """And what takes many requests, or long ones."""
    SOAK = "soak"
    """And again, in more shapes: more intervals, more seeds, more neighbours."""

    def covers(self, least: Budget) -> bool:
        """True if a run of this budget asks what takes at least the budget `least`."""
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
    """The values that a field of a request may have in any dialect, and what it changes."""

    kind: Kind
    least: float | None = None
    """Below this nothing can be meant. -1 often means none, or all."""
    shapes: bool = True
    """True if it shapes the tokens or their text; not what is reported of them, and when."""
    judged: bool = True
    """True if a value of another kind has to be refused."""


def _rule(
    kind: Kind, *, least: float | None = None, shapes: bool = True, judged: bool = True
) -> dict[str, _Rule]:
    return {"rule": _Rule(kind, least, shapes, judged)}


@dataclass(frozen=True, kw_only=True)
class _Sampling:
    """Fields for the sampling of a prompt's tokens, for their end, and for their text."""

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
    """Fields of a request beside its prompts. An ask is rendered from them, and a request is parsed
    into them.
    """

    n: int = field(default=1, metadata=_rule("integer", least=1))
    stream: bool = field(default=False, metadata=_rule("boolean", shapes=False))
    stream_interval: int | None = field(default=None, metadata=_rule("integer", least=1, shapes=False))
    logit_bias: Mapping[int, float] = field(default_factory=dict, metadata=_rule("biases", judged=False))
    """Additions to the logits of some ids."""
    frequency_penalty: float = field(default=0.0, metadata=_rule("number", judged=False))
    """The amount taken from the logit of an id for each time that it was sampled."""
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
    """Greedy by default."""
    wrong: Mapping[str, Any] = field(default_factory=dict)
    """Fields of an ask with values that they must not have, written as they are."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """Laid over the rendered body last, object by object, for requests that no dialect would write.

    `OMIT` as a value removes the key.
    """

    @property
    def prompts(self) -> int:
        """The number of prompts of the ask."""
        return max(len(self.input_ids), len(self.text), 1 if self.messages else 0)


RULES: Mapping[str, _Rule] = {field.name: field.metadata["rule"] for field in fields(RequestFields)}
SAMPLING = frozenset(field.name for field in fields(_Sampling))
"""The fields that the prompts of a batch may differ in."""
PENALTIES = ("logit_bias", "frequency_penalty")
"""Fields of a body among penalties that have no field here."""

_WORDS = (
    *("sea", "river", "stone", "bird", "house", "tree", "road"),
    *("cloud", "hand", "light", "water", "field", "door"),
)


def in_words(ask: Ask) -> Ask:
    """Return the ask with a word for each id of its prompts, for an endpoint that takes texts and no ids.

    Prompts that begin alike still do.
    """
    texts = tuple(" ".join(_WORDS[token % len(_WORDS)] for token in ids) for ids in ask.input_ids)
    return replace(ask, input_ids=(), text=texts)


@dataclass(frozen=True)
class SentField:
    """A field of a request as it was sent, legal or not."""

    wire_name: str
    values: tuple[Any, ...]
    """JSON values as they were sent: one, or one for each item where a list of objects holds it."""


@dataclass(frozen=True)
class Wanted:
    """Something that a request asks to get beyond the fields of the record, as its dialect lists it."""

    wire_name: str
    """The field of the request that asks for it."""
    names: tuple[str, ...]
    """What it is called in an emission: one of these is there, in every choice."""
    pointers: tuple[str, ...] = ()
    """Its places beside the choices, in the document or in any event."""


class Turn(NamedTuple):
    """The request of one turn of a session."""

    after: str
    """The id of the request whose prompt and output come before."""
    offset: int
    """The number of their ids that come before; 0 means all."""
    input_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Asked(RequestFields):
    """The fields that were parsed from a request, in the terms of the abstract record.

    A field has its default if neither the request nor the dialect sets it.
    """

    prompts: int = 1
    batch: bool = False
    """The answer is a list of choices (a batch of prompts, or n > 1)."""
    input_ids: tuple[tuple[int, ...], ...] | None = None
    """The token ids sent, one tuple for each prompt; None for a text prompt or messages."""
    texts: tuple[str, ...] = ()
    """The prompts that were sent as text; empty for ids and messages."""
    text_prompt: bool = False
    """A text prompt or messages were sent (perhaps beside input_ids)."""
    budgets: tuple[int, ...] = ()
    """That of each prompt, where they differ; then there is none for all of them."""
    by_prompt: tuple[Asked, ...] = ()
    """What each prompt is asked for, where they are sampled or stopped differently; see `of`."""
    greedy: bool = False
    chosen_in_top: tuple[int, ...] = ()
    """Ids whose logprobs replace the likeliest, after that of the sampled one."""
    wanted: tuple[Wanted, ...] = ()
    """Other things that were asked for."""
    turn: Turn | None = None
    """The turn of a session; None if it is not a turn, or if its prompt is not known."""
    constraints: tuple[Constraint, ...] = ()
    """Of what the text of each choice has to be a word; more than one contradict each other."""
    tools: ToolRule | None = None
    """The rules for calls; None if it does not offer tools."""
    media: bool = False
    """True if images or other media are beside the prompt."""
    truncate: int | None = None
    """The most tokens that are kept of each input; -1 for as many as the context holds."""
    most: int | None = None
    """The most results in the answer, the best ones."""
    rank: int | None = None
    """The data-parallel rank that is to run it; None for any."""
    model: str = ""
    """The name that the request calls the model by; empty where it names none."""
    adapter: SentField | None = None
    """What the request says in the field that names an adapter, or the adapter of each prompt."""
    uniform: bool = True
    """Every prompt was asked for the same metadata; where not, this class cannot say what was asked."""
    sent: Mapping[str, SentField] = field(default_factory=dict)
    """What the body says in the fields of its dialect, by their names here and in `Ask`."""
    key: str = ""
    """Equal for requests that must yield the same record: all that shapes the result, nothing of delivery.

    Empty where the result is not meant to be repeatable (sampling without a seed) or could not be read.
    """
    prompt_key: str = ""
    """Canonical JSON of the model and the prompt, in whatever form they were sent; empty where unreadable."""
    cache_key: str = ""
    """JSON of the salt and the key that what is cached is shared under; empty where there are none."""
    ids_key: str = ""
    """Equal for greedy requests for one sample of the same input_ids, budget and stops, on any endpoint."""
    other_sampling: str = ""
    """JSON of all parameters that shape the tokens beside those that truncate: penalties, bias, grammar.

    Empty where there is none. Requests that differ in it are never related to each other.
    """
    form: str = ""
    """JSON of other fields that shape how tokens are reported, and not the tokens; empty without any."""
    constrained: bool = False
    """Something shapes the tokens that this class does not tell, such as a grammar."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields that have another value than by default: most requests set few, and many are
        pickled.

        What was unpickled has the others of its class.
        """
        return {name: value for name, value in vars(self).items() if not _is_default(name, value)}

    def of(self, choice: int) -> Asked:
        """Return the same, as far as one choice is asked for otherwise than those of other prompts."""
        prompt = choice // max(self.n, 1)
        return self.by_prompt[prompt] if prompt < len(self.by_prompt) else self

    def budget(self, choice: int) -> int | None:
        """Return the most tokens that a choice may have, as far as the request sets it."""
        prompt = choice // max(self.n, 1)
        return self.budgets[prompt] if prompt < len(self.budgets) else self.max_new_tokens

    @property
    def likeliest(self) -> bool:
        """True if the ids are the likeliest by the model: none is drawn, biased or penalised."""
        return self.greedy and not self.other_sampling

    @property
    def stoppable(self) -> bool:
        """True if something beside its budget may end a choice: an end, a stop, or a constraint
        that is met.
        """
        demanded = self.tools is not None and self.tools.demand == "required"
        stops = self.stop or self.stop_token_ids or self.stop_regex
        return bool(not self.ignore_eos or stops or self.constraints or demanded)

    @property
    def truncated(self) -> bool:
        """True if a part of the distribution is not sampled from."""
        return (self.top_k or 0) > 0 or (self.top_p or 1.0) < 1.0 or (self.min_p or 0.0) > 0.0


def _is_default(name: str, value: object) -> bool:
    """True if a parsed field has its default: the same value of the same type."""
    default = getattr(Asked, name, ...)  # a mutable default is none of the class
    return type(value) is type(default) and value == default
