"""Derives the plan of a run from the user's `Settings`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenwire.asking.politeness import Limits, Price
from tokenwire.asking.run import Plan
from tokenwire.asking.scenario_file import load_scenario_file
from tokenwire.asking.vital_signs import RESTART_WAIT_S, Revival
from tokenwire.settings import REPRODUCED, RESUMED, Settings, having
from tokenwire.target.tokenizer import LocalTokenizer, Tokenizer
from tokenwire.usage_error import UsageError
from tokenwire.wire.credentials import from_environment, header_value, named_by_environment
from tokenwire.wire.redaction import Headers, names_credential


def tokenizer_in(folder: Path | None) -> Tokenizer | None:
    """Load the tokenizer of a folder.

    Raises UsageError if the tokenizer is missing, or if the package that loads it is not installed.
    """
    return LocalTokenizer(folder) if folder is not None else None


def judged_with(tokenizer: Path | None) -> tuple[str, ...]:
    """Return the command-line options for another run that judges in the same way."""
    return () if tokenizer is None else ("--tokenizer", str(tokenizer))


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    # The value is not quoted in the message, because it may contain a credential.
    if not colon or not name.strip():
        raise UsageError("a --header needs a colon; write --header 'Name: value'")
    return name.strip(), value.strip()


def headers_of(settings: Settings) -> Headers:
    """Return the headers to send.

    A header of the command line replaces a header of the same name in the file. Raises UsageError for an
    option without a colon.
    """
    given = tuple(map(_header, settings.header))
    names = {name.lower() for name, _ in given}
    return (*(pair for pair in settings.file_headers if pair[0].lower() not in names), *given)


def _limits(settings: Settings) -> Limits:
    """Return the limits of a run. Raises UsageError."""
    try:
        price = Price.parse(settings.price) if settings.price else None
    except ValueError as error:
        raise UsageError(
            f"--price {settings.price} is not a price; write IN,OUT: what a million prompt and a million "
            "output tokens cost, for example --price 0.5,1.5"
        ) from error
    if settings.max_cost is not None and price is None:
        raise UsageError("--max-cost needs to know what tokens cost; add --price IN,OUT")
    return Limits(
        settings.max_concurrency,
        settings.max_tokens,
        settings.rate,
        settings.max_requests,
        settings.max_cost,
        price,
    )


def _asked_with(settings: Settings, headers: Headers) -> Iterator[str]:
    """Yield the command-line options for another run that sends the same requests.

    Credentials are written as `env:MY_KEY`.
    """
    for name, value in headers:
        is_open = from_environment(value) or not names_credential(name)
        yield from ("--header", f"{name}: {value if is_open else 'env:MY_KEY'}")
    for option in having(REPRODUCED):
        value = getattr(settings, option.name)
        if option.name != "header" and value != option.default:
            for word in value if option.several else (value,):
                yield from (option.flags[0], word)


def _asked(settings: Settings, headers: Headers) -> dict[str, Any]:
    """Return the options that must be equal when a run is resumed.

    Of headers, only the names are included.
    """
    options = settings.values(RESUMED) | {"header": tuple(name.lower() for name, _ in headers)}
    return {name: sorted(value) if isinstance(value, tuple) else value for name, value in options.items()}


def planned(settings: Settings, environment: Mapping[str, str] = os.environ) -> Plan:
    """Return the plan of a run, with environment variables in header values replaced. Raises UsageError."""
    from_files = map(load_scenario_file, settings.scenario_file)
    settings = replace(
        settings,
        target=settings.target.rstrip("/"),
        worker=settings.worker.rstrip("/"),
        scenario=tuple(dict.fromkeys((*settings.scenario, *from_files))),
    )
    headers = headers_of(settings)
    sent = tuple((name, header_value(name, value, environment)) for name, value in headers)
    revives = settings.restart or settings.wait
    return Plan(
        settings,
        limits=_limits(settings),
        headers=sent,
        secrets=named_by_environment(headers),
        tokenizer=tokenizer_in(settings.tokenizer),
        revival=Revival(settings.restart, settings.wait or RESTART_WAIT_S) if revives else None,
        asked=_asked(settings, headers),
        asked_with=tuple(_asked_with(settings, headers)),
        judged_with=judged_with(settings.tokenizer),
    )
