"""A request inside the engine: its parameters and its state. No torch, no HTTP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from tokenwire_reference.core.request_extras import Extra
from tokenwire_reference.core.seams import Seams, current_seams

logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class Matcher(Protocol):
    """Follows the output of a request with a constraint."""

    def allowed(self, output_ids: Sequence[int], drafts: Sequence[int] = ()) -> bytes:
        """Return a bit for each id that may follow an output and further drafts. Raises SequenceError."""


class Constraint(Protocol):
    """A language that the text of a request must belong to."""

    def start(self) -> Matcher:
        """Return a matcher for one request."""


class Drafter(Protocol):
    """Proposes the next ids of one sequence (drafts). The model checks all drafts in one step."""

    @property
    def takes_time(self) -> bool:
        """True if drafting may make a step wait."""

    def draft(self, token_ids: Sequence[int], room: int) -> Sequence[int]:
        """Return at most `room` ids that may follow `token_ids` (the prompt and all output so far).

        A wrong draft costs time without changing the result. Raises SequenceError to end the sequence.
        """


class Adapter(Protocol):
    """An adapter, which changes the weights of the model for the requests that name the adapter."""

    @property
    def cache_key(self) -> str:
        """A key of the prefix cache. Adapters with equal keys compute equal keys and values for a prefix."""


@dataclass(frozen=True)
class SamplingParams:
    """Parameters for choosing tokens and for stopping. Names and defaults are SGLang's."""

    max_new_tokens: int | None = 128
    """The maximum number of new tokens; None for the rest of the context."""
    min_new_tokens: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    ignore_stop_token_ids: bool = False
    min_tokens_before_stop: int = 0
    """The number of tokens within which stop strings do not end the request."""
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    stream_interval: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    sampling_seed: int | None = None
    custom_params: Mapping[str, Any] | None = None
    """Parameters of a special model or sampler, such as a script."""
    constraint: Constraint | None = None
    only_ids: tuple[int, ...] = ()
    """The ids that may be sampled; empty for all."""
    banned_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids that may not be completed."""

    @property
    def penalises(self) -> bool:
        """True if earlier tokens change the next one."""
        return bool(self.frequency_penalty or self.presence_penalty) or self.repetition_penalty != 1.0

    @property
    def truncates(self) -> bool:
        """True if top_k, top_p or min_p is set."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-6 or self.top_k == 1


class SequenceError(Exception):
    """One sequence cannot continue. Other sequences are not affected."""

    status_code = 500
    """The HTTP status of the answer to the request."""


@dataclass(frozen=True)
class FinishReason:
    """The reason why a request ended."""

    type: Literal["stop", "length", "abort"]
    matched: int | str | None = None
    """For the type `stop`, the stop id, stop string or stop pattern that matched."""
    length: int | None = None
    """For the type `length`, the number of output tokens."""
    message: str | None = None
    status_code: int | None = None
    """For the type `abort`, the HTTP status of the answer; None if the client aborted the request."""

    @classmethod
    def of_failure(cls, error: BaseException) -> FinishReason:
        """Return the finish reason of a request that failed because of an error of the server."""
        if isinstance(error, SequenceError):
            return cls("abort", message=str(error), status_code=error.status_code)
        return cls("abort", message=f"{type(error).__name__}: {error}", status_code=500)

    @property
    def failed(self) -> bool:
        """True if the request ended because of an error of the server."""
        return self.status_code is not None and self.status_code >= 500

    def to_wire(self) -> dict[str, Any]:
        """Return the value of `meta_info.finish_reason`."""
        match self.type:
            case "stop":
                return {"type": "stop", "matched": self.matched}
            case "length":
                return {"type": "length", "length": self.length}
            case _:
                return {
                    "type": "abort",
                    "message": self.message,
                    "status_code": self.status_code,
                    "err_type": None,
                }


LOGPROB_FAMILIES = ("token_logprobs", "top_logprobs", "token_ids_logprobs", "token_ranks")
"""The wire names of logprob series, without the prefix `input_` or `output_`."""
MASK, MASK_LOGPROBS = "output_token_sampling_mask", "output_token_sampling_logprobs"
HIDDEN_STATES = "hidden_states"
SERIES_ASKED_FOR: Mapping[str, Sequence[str]] = {
    "return_sampling_mask": (MASK, MASK_LOGPROBS),
    "return_hidden_states": (HIDDEN_STATES,),
}
"""The series other than logprobs: from the field of a `Request` or body that requests them, to their wire
names.
"""
OWN_SERIES = frozenset(
    (*(f"output_{family}" for family in LOGPROB_FAMILIES), *chain.from_iterable(SERIES_ASKED_FOR.values()))
)
"""The names of series that a sampler backend must not use. Series with other names are customized info."""


@dataclass
class DraftCounts:
    """Counts of the draft tokens of a request. A step may check several draft tokens."""

    proposed: int = 0
    right: list[int] = field(default_factory=list)
    """The number of accepted drafts in each step that decoded or checked drafts."""


@dataclass
class Request:
    """One sample of one prompt. The first fields are the parameters; the fields after them are the state.

    `output_ids` and every list in `series` grow together, one entry for each token: one append-only record.
    The engine's thread appends to it. A `Row` limits how far other threads may read.
    """

    rid: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stream: bool = False
    return_logprob: bool = False
    logprob_start_len: int = -1
    """The first prompt position whose logprob is requested; -1 for no prompt logprobs."""
    top_logprobs_num: int = 0
    token_ids_logprob: tuple[int, ...] = ()
    extra_key: str | None = None
    cache_salt: str | None = None
    """A salt for the prefix cache.

    Requests share cached prefixes only if their extra keys and their salts are equal.
    """
    adapter: Adapter | None = None
    """The adapter of the request; None for the model itself."""
    return_ranks: bool = False
    """True to add the rank of each token to logprobs, 1 for the likeliest."""
    return_sampling_mask: bool = False
    """True to return the set of ids from which each token was sampled, and the token's logprob within this
    set.
    """
    return_hidden_states: bool = False
    """True to return the states of the last layer for all computed positions."""
    group: str | None = None
    """The id that the requests of one HTTP call have in common.

    The call's requests share one turn of admission. None for a single request.
    """
    extras: dict[Extra[Any], Any] = field(default_factory=dict, repr=False, compare=False)
    """Values that optional parts keep with the request."""
    seams: Seams = field(default_factory=current_seams, repr=False, compare=False)
    """The seams, at which a fault may change how the request is processed."""

    # The fields below are the state of the request.
    output_ids: list[int] = field(default_factory=list)
    series: Mapping[str, list[Any]] = field(default_factory=dict)
    """Lists by wire name (`output_token_logprobs`, …, customized_info keys), with one entry for each output
    id.
    """
    prompt_series: dict[str, list[Any]] = field(default_factory=dict)
    """Lists by wire name (`input_token_logprobs`, …), with one entry for each prompt token from
    `logprob_start_len`.
    """
    matcher: Matcher | None = field(default=None, repr=False)
    """Decides which ids may come next; None without a constraint, and before the first token."""
    seed: int = 0
    """The seed of sampling: the seed in the request, or else a seed from the engine."""
    finish: FinishReason | None = None
    held_back: bool = False
    """True if the end of the text may be the beginning of a stop string.

    Then the request emits nothing in this step.
    """
    cached_tokens_device: int = 0
    cached_tokens_host: int = 0
    cached_tokens_storage: int = 0
    storage_backend: str | None = None
    """The name of the permanent storage of pages; None without one."""
    weight_changes: tuple[tuple[str, int], ...] = (("default", 0),)
    """The versions of the weights that generated the output, each with its first token.

    The weights change only while no request is running. Their version may get another name at any time. The
    tuple is replaced, because a reader on another thread may iterate over the old one.
    """
    prompt_weights: tuple[tuple[str, int], ...] = ()
    """The versions of the weights that computed the prompt, each with its first position, if reported."""
    num_retractions: int = 0
    drafts: DraftCounts | None = None
    """The counts of drafts; None if the engine has no drafts."""

    def __post_init__(self) -> None:
        self.extras = dict(self.extras)  # several samples share the same values

    @property
    def weight_version(self) -> str:
        """The version of the weights that generate the next token."""
        return self.weight_changes[-1][0]

    def use_weights(self, version: str) -> None:
        """Begin a range of output tokens that this version of the weights generates.

        A version that is already in use begins no range, and no range is empty.
        """
        count = len(self.output_ids)
        before = tuple(change for change in self.weight_changes if change[1] < count)
        if not before or before[-1][0] != version:
            before += ((version, count),)
        self.weight_changes = before

    @property
    def prefix_secrets(self) -> tuple[str | None, ...]:
        """The values that must be equal for two requests to share cached prefixes."""
        adapter = self.adapter.cache_key if self.adapter else None
        return self.seams.prefix_secrets((self.extra_key, self.cache_salt, adapter))

    @property
    def cached_tokens(self) -> int:
        """The number of prompt tokens found in some tier of the cache."""
        return self.cached_tokens_device + self.cached_tokens_host + self.cached_tokens_storage

    @property
    def cached_tokens_details(self) -> Mapping[str, Any] | None:
        """The number of reused prompt tokens by tier of the cache; None if no token was reused.

        With a storage backend, its name is included.
        """
        if not self.cached_tokens:
            return None
        details: dict[str, Any] = {"device": self.cached_tokens_device, "host": self.cached_tokens_host}
        if self.cached_tokens_storage or self.storage_backend:
            details["storage"] = self.cached_tokens_storage
        if self.storage_backend:
            details["storage_backend"] = self.storage_backend
        return details

    def append(self, token_id: int, entries: Mapping[str, Any], customized_info: Mapping[str, Any]) -> None:
        """Add one sampled token with all its entries."""
        count = len(self.output_ids)
        values_of_token = {**entries, **customized_info} if customized_info else entries
        if not values_of_token.keys() <= self.series.keys():
            # The dictionary is replaced, because a reader on another thread may iterate over the old one.
            missing = {name: [None] * count for name in values_of_token if name not in self.series}
            self.series = {**self.series, **missing}
        for name, values in self.series.items():
            values.append(values_of_token.get(name))
        self.output_ids.append(token_id)


def alone(
    request: Request, function: Callable[..., _Result], *arguments: Any, what: str = ""
) -> _Result | None:
    """Call a function for one request.

    If the function fails, only this request ends, and None is returned. `what` describes the function in the
    log; if it is empty, the failure is not logged.
    """
    # A context manager would take ten times as long, and this function is called twice for each token.
    try:
        return function(*arguments)
    except Exception as error:
        if what:
            logger.exception("request %r: %s", request.rid, what)
        request.finish = FinishReason.of_failure(error)
        return None


class Row(NamedTuple):
    """The part of a record that may be sent: the tokens from `start` to `end`, and the finish if the request
    has ended.
    """

    record: Request
    start: int
    end: int
    series: Mapping[str, Sequence[Any]]
    """The series of the record at the time when the row was made."""
    finish: FinishReason | None
