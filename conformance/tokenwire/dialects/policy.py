"""The policy of a dialect: how a server family behaves where the specification permits several ways."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Policy:
    """The behaviour of one dialect where the specification permits several ways.

    The defaults are the most common behaviour, and a table lists only differences. `python -m
    docs_build.field_tables` writes these fields into `spec/dialects/README.md`.
    """

    tito_stream_refused: bool = False
    """A stream with token-in-token-out fields is refused."""
    stop_id_in_output_ids: bool = True
    """The stop id that ended a choice is the last output id."""
    hidden_in_logprobs: bool = True
    """Logprobs of chat include tokens that the content does not show, such as a stop or reasoning.

    False if servers of this family differ.
    """
    finish_types: frozenset[str] = frozenset({"stop", "length", "abort"})
    """The finish types that a choice may have."""
    other_finish_types: bool = False
    """Other finish types are not a violation, and are reported as INFO."""
    unasked_usage: bool = False
    """Usage that was not requested, or that is in every event, is not a violation. It is reported as INFO."""
    vocabulary_told: str = ""
    """A regular expression for error messages. Its group is the vocabulary size that they mention."""
    zero_budget: Literal["answered", "refused", "unspecified"] = "answered"
    """The response to a request for 0 tokens.

    `unspecified` if 0 has different meanings in different fields.
    """
    default_budget_exceeds: int | None = None
    """A choice may have more ids than this number, if its request names no budget and the context has room.

    None if the endpoint has a documented default, or if it is unknown.
    """
    least: Mapping[str, float | None] = field(default_factory=dict)
    """The smallest valid number of a field, if it is unusual: for example -1, if -1 means no limit. null
    permits any number.
    """
    stream_interval: Literal["replaces", "raises"] = "replaces"
    """The effect of the request's stream_interval on the server's: with `raises`, only a larger one has an
    effect.
    """
    request_id_prefix: str = ""
    """The prefix that the server adds to the client's request id."""
    request_id_prefix_is_optional: bool = False
    """The server may leave out this prefix."""
    prompt_ids_once: bool = False
    """A stream contains the prompt's ids once, and not once for each sample."""
    numeric_error_codes: bool = True
    """The `code` of an error is a number. False if it may be a string or null."""
    end_mark: str = "[DONE]"
    """The data of the event that only marks the end of a stream; empty if there is no such event."""
    end_mark_is_optional: bool = False
    """A stream may end without that event."""
    events_are_named: Literal["never", "optional", "required"] = "never"
    """Events have a name, equal to their `type`. `optional` if clients do not need the name."""
    earlier_reasoning_is_optional: bool = False
    """The server may leave the reasoning of earlier turns out of the prompt."""
    input_is_object: bool = False
    """A response that is not a stream has the arguments of a call as an object, and not as JSON text."""
    named_events_header: str = ""
    """The request header, in lower case, with which a client requests named events."""
    text_offsets: Literal["told", "unknown"] = "told"
    """`told` if responses contain the offsets of tokens in the text, otherwise `unknown`."""
    top_logprobs_begin_with_sampled: bool = False
    """The sampled token is the first of the top logprobs, whatever its rank."""
    fewer_top_logprobs: bool = False
    """A position may have fewer top logprobs than requested."""
    sampled_besides_top_logprobs: bool = False
    """The sampled token, if it is not among the top logprobs, is added before them, and does not count."""
    likeliest_are_listed: Literal["as_chosen_from", "before_bans", "before_penalties"] = "as_chosen_from"
    """The logprobs by which top logprobs are chosen.

    `before_bans`: before ids are banned by the request, so banned ids are included. `before_penalties`: also
    before penalties that the server applies by default.
    """
    prompt_logprobs_in_streams: Literal["answered", "refused"] = "answered"
    """The response to a stream that requests prompt logprobs."""
    echo_repeats_text_beside_ids: bool = True
    """An echo contains the prompt's text even if it contains the prompt's ids."""
    ids_are_optional: bool = False
    """A server may refuse prompts as ids. It then gets prompts as text, and what needs ids is not tested."""
    mixed_prompts: bool = False
    """A list of prompts may contain both ids and texts."""

    def __post_init__(self) -> None:
        if self.vocabulary_told and re.compile(self.vocabulary_told).groups != 1:
            raise ValueError(f"vocabulary_told: {self.vocabulary_told!r} must have exactly one group")
