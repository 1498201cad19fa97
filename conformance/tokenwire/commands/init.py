"""`tokenwire init`: probe a server, and write its settings into a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tokenwire.ask import Budget
from tokenwire.asking.planning import headers_of, planned
from tokenwire.commands.ask import reached
from tokenwire.commands.command import command, declarable, writable
from tokenwire.commands.trust import Brought, remember
from tokenwire.config import HEADERS, KEYS, OWN_FILE, TABLES
from tokenwire.disk import system_says, write_whole
from tokenwire.report.subject import Subject
from tokenwire.settings import Settings
from tokenwire.target.determinism import PROBE
from tokenwire.wire.credentials import from_environment
from tokenwire.wire.inert import inert
from tokenwire.wire.redaction import Headers, names_credential


def _value(value: Any) -> str:
    """Return a value as TOML. All values except tables are written as in JSON."""
    if isinstance(value, dict):
        return (
            f"{{ {', '.join(f'{json.dumps(name)} = {_value(member)}' for name, member in value.items())} }}"
        )
    return json.dumps(value, ensure_ascii=False)


def lines_of_file(known: Mapping[str, Any], proposed: Mapping[str, Any], about: str) -> Iterator[str]:
    """Yield the lines of a settings file.

    Known settings are active lines, and all other settings are comments.
    """
    # Control characters are escaped, because the description may contain text from a server.
    yield f"# Settings of tokenwire. {inert(' '.join(about.split()))}"
    yield "# The command line beats this file: tokenwire check --target URL."
    for name, option in KEYS.items():
        yield ""
        yield f"# {option.help}" + (" Seen so far:" if proposed.get(name) else "")
        if name in known:
            yield f"{name} = {_value(known[name])}"
        else:
            yield f"# {name} = {_value(proposed[name]) if proposed.get(name) else option.example}"
    for table, keys in TABLES.items():
        yield ""
        yield f"# For `tokenwire {table}` alone; it comes after all keys for every command."
        yield f"# [{table}]"
        for name, option in keys.items():
            yield f"# {name} = {option.example}  # {option.of(table).help}"


def _seen(subject: Subject) -> list[str]:
    known = {name: found for run in subject.runs for name, found in run.capabilities.items()}
    return sorted(name for name in declarable() if name in known and known[name].seen)


def _storable(headers: Headers) -> dict[str, str]:
    """Return the headers that may be stored in a file. Raises BadParameter for a credential."""
    for name, value in headers:
        if names_credential(name) and not from_environment(value):
            raise typer.BadParameter(
                f"--header {name} contains a credential, which must not be in a file; put it into an "
                f"environment variable and write --header '{name}: env:MY_KEY'"
            )
    return dict(headers)


def _init(
    settings: Settings,
    *,
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="The file to write.")] = Path(OWN_FILE),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Probe a server, and write tokenwire.toml with an explanation of each setting.

    Exit status: 0 the file was written, 2 wrong command line, 4 the target could not be reached.
    """
    if file.exists() and not force:
        raise typer.BadParameter(f"{file} exists; overwrite it with --force, or name another --file")
    writable(file, "--file")
    plan = planned(replace(settings, scenario=(PROBE,), budget=Budget.QUICK))
    headers = _storable(headers_of(settings))
    subject = reached(plan, verbosity=settings.verbosity)
    known: dict[str, Any] = {"target": settings.target, "budget": "standard"}
    known |= {"model": settings.model} if settings.model else {}
    known |= {"timeout": settings.timeout} if "timeout" in settings.given else {}
    proposed = {"dialects": list(subject.dialects), "capabilities": _seen(subject)}
    server = subject.runs[0].advertised
    name = inert(" ".join(filter(None, (server.name, server.version))))
    name = name or "a server without a name"
    known |= {"headers": headers} if headers else {}
    lines = lines_of_file(known, proposed, f"Written for {name}.")
    write_whole(file, "\n".join(lines) + "\n")
    decided = {name: value for name, value in known.items() if name != HEADERS}
    decided |= {f"{HEADERS}.{name}": value for name, value in headers.items()}
    try:
        remember(file, Brought(decided))
    except OSError as error:
        typer.echo(f"cannot store that {file} is trusted: {system_says(error)}", err=True)
    typer.echo(
        f"{file} is written. The dialects of {name}: {', '.join(subject.dialects)}. Next: tokenwire check"
    )


app = command(
    _init,
    "tokenwire init --target http://127.0.0.1:30000",
    "tokenwire init --target https://api.example.org --header 'Authorization: Bearer env:MY_KEY'",
)
