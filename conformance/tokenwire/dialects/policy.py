"""The policy of a dialect: the server family's choices between alternatives of the specification."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Policy:
    """The choices of one dialect. The defaults are the usual choices; a table contains only differences.

    `spec/dialects/README.md` shows these fields (`python -m docs_build.field_tables` writes its table).
    """

    tito_stream_refused: bool = False
    """Token-in-token-out fields are refused in streams."""
    stop_id_in_output_ids: bool = True
    """The id that ended a choice is its last output id."""
    hidden_in_logprobs: bool = True
    """Logprobs of chat have entries for tokens whose text the content does not show: a stop, thoughts; false
    where servers differ."""
    finish_types: frozenset[str] = frozenset({"stop", "length", "abort"})
    """The types with which a choice may finish."""
    other_finish_types: bool = False
    """Other words than those are not violations, and are reported as INFO."""
    unasked_usage: bool = False
    """Usage that was not asked for, or is in every event, is not a violation, and is reported as INFO."""
    vocabulary_told: str = ""
    """A pattern whose group is the size of the vocabulary, in the words of refusals."""
    zero_budget: Literal["answered", "refused", "unspecified"] = "answered"
    """The answer to a request for no tokens; `unspecified` if its fields differ in the meaning of 0."""
    least: Mapping[str, float | None] = field(default_factory=dict)
    """The least number with a meaning for each field, if it is unusual, such as -1 for no limit; null for any
    number.
    """
    stream_interval: Literal["replaces", "raises"] = "replaces"
    """The effect of a request's interval on the server's: `raises` if only a larger one counts."""
    request_id_prefix: str = ""
    """The prefix before the client's own id."""
    request_id_prefix_is_optional: bool = False
    """An answer may carry the client's own id without the prefix."""
    prompt_ids_once: bool = False
    """A stream tells the prompt's ids once for all samples."""
    numeric_error_codes: bool = True
    """The `code` of an error is a number; false where it is a word or null."""
    end_mark: str = "[DONE]"
    """The data of the event that ends a stream; empty if no event says nothing but that."""
    end_mark_is_optional: bool = False
    """Streams may end without it."""
    events_are_named: Literal["never", "optional", "required"] = "never"
    """True if the name of an event is its type: `optional` where clients read the type alone."""
    earlier_reasoning_is_optional: bool = False
    """The chat template may not be given the reasoning of earlier turns."""
    input_is_object: bool = False
    """Whole answers write the arguments of a call as an object, and not as text."""
    named_events_header: str = ""
    """A request header, in lower case, by which a client asks for named events."""
    text_offsets: Literal["told", "unknown"] = "told"
    """The offsets of tokens in the text: `unknown` if the server does not report them."""
    top_logprobs_begin_with_sampled: bool = False
    """The sampled token comes first, whatever its rank."""
    fewer_top_logprobs: bool = False
    """A position may hold fewer than were asked for."""
    sampled_besides_top_logprobs: bool = False
    """A sampled token that is not among the likeliest comes before them, and is not counted."""
    likeliest_are_listed: Literal["as_chosen_from", "before_bans", "before_penalties"] = "as_chosen_from"
    """The logprobs that order the likeliest: `before_bans`, as the model gave them, including ids that the
    request bans; `before_penalties`, also if the server applies penalties unasked.
    """
    prompt_logprobs_in_streams: Literal["answered", "refused"] = "answered"
    """The answer to a stream that asks for prompt logprobs."""
    echo_repeats_text_beside_ids: bool = True
    """An echo repeats the prompt's text even if it tells the prompt's ids."""
    ids_are_optional: bool = False
    """A server that refuses prompts as ids is asked in words, and what needs ids is not asked."""
    mixed_prompts: bool = False
    """One list may mix ids and texts."""

    def __post_init__(self) -> None:
        if self.vocabulary_told and re.compile(self.vocabulary_told).groups != 1:
            raise ValueError(f"vocabulary_told: {self.vocabulary_told!r} must have exactly one group")
