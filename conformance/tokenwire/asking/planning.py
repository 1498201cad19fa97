"""From the options of a command line, or of a file of settings, to the plan of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenwire.asking.politeness import Limits, Price
from tokenwire.asking.run import Plan
from tokenwire.asking.scenario import Budget
from tokenwire.asking.vital_signs import RESTART_WAIT_S, Revival
from tokenwire.target.tokenizer import LocalTokenizer, NoTokenizer, Tokenizer
from tokenwire.wire.credentials import NoCredential, from_environment, header_value, named_by_environment
from tokenwire.wire.redaction import Headers, names_credential


class NotPlanned(ValueError):  # noqa: N818  # a fact about what was asked for
    """The options name something that is not there; the message says what."""


def tokenizer_in(folder: Path | str | None) -> Tokenizer | None:
    """The tokenizer in a folder. Raises NotPlanned where there is none, or nothing to read it with."""
    try:
        return LocalTokenizer(Path(folder)) if folder is not None else None
    except NoTokenizer as error:
        raise NotPlanned(str(error)) from error


def _limits(options: Mapping[str, Any]) -> Limits:
    """What a run may ask of the server. Raises NotPlanned."""
    price, max_cost = options.get("price"), options.get("max_cost")
    try:
        said = Price.said(price) if price else None
    except ValueError as error:
        raise NotPlanned(
            f"--price {price} is no price; write IN,OUT: what a million prompt tokens and a million output "
            "tokens cost, for example --price 0.5,1.5"
        ) from error
    if max_cost is not None and said is None:
        raise NotPlanned("--max-cost needs to know what tokens cost; add --price IN,OUT")
    return Limits(
        options.get("max_concurrency", 16),
        options.get("max_tokens"),
        options.get("rate"),
        options.get("max_requests"),
        max_cost,
        said,
    )


def judged_with(tokenizer: Path | str | None) -> tuple[str, ...]:
    """The words of a command line that have answers judged in the same way."""
    return () if tokenizer is None else ("--tokenizer", str(tokenizer))


def _revival(command: str, wait_s: float | None) -> Revival | None:
    """How the server comes back after it died; None if no option tells."""
    return Revival(command, wait_s or RESTART_WAIT_S) if command or wait_s else None


def _said(options: Mapping[str, Any], headers: Headers) -> Iterator[str]:
    """The words of a command line that have a target asked in the same way; a credential stands as the name
    of a variable.
    """
    for name, value in headers:
        is_open = from_environment(value) or not names_credential(name)
        yield from ("--header", f"{name}: {value if is_open else 'env:MY_KEY'}")
    for option in ("dialect", "declare"):
        for value in options.get(option) or ():
            yield from (f"--{option}", value)
    for option in ("model", "worker", "channels"):
        if said := options.get(option):
            yield from (f"--{option}", said)
    if (budget := Budget(options.get("budget", Budget.STANDARD))) is not Budget.STANDARD:
        yield from ("--budget", budget)


def planned(
    target: str,
    options: Mapping[str, Any],
    headers: Headers = (),
    environment: Mapping[str, str] = os.environ,
) -> Plan:
    """The plan for a target. `options` are by the names of the command line's parameters.

    A value of `headers` may name environment variables. Raises NotPlanned.
    """
    try:
        sent = tuple((name, header_value(name, value, environment)) for name, value in headers)
    except NoCredential as error:
        raise NotPlanned(str(error)) from error
    return Plan(
        url=target.rstrip("/"),
        timeout_s=options.get("timeout", 60.0),
        limits=_limits(options),
        headers=sent,
        secrets=named_by_environment(headers),
        dialects=tuple(options.get("dialect") or ()),
        scenarios=tuple(options.get("scenario") or ()),
        model=options.get("model", ""),
        tokenizer=tokenizer_in(options.get("tokenizer")),
        budget=Budget(options.get("budget", Budget.STANDARD)),
        declared=tuple(options.get("declare") or ()),
        worker=options.get("worker", "").rstrip("/"),
        without=tuple(options.get("without") or ()),
        gentle=options.get("gentle", False),
        tool_calls=options.get("channels", ""),
        revival=_revival(options.get("restart") or "", options.get("wait")),
        asked_with=tuple(_said(options, headers)),
        judged_with=judged_with(options.get("tokenizer")),
    )
