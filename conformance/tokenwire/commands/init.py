"""`tokenwire init`: look at a server, and write down how this project checks it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tokenwire.asking.run import Unreached
from tokenwire.asking.scenario import Budget
from tokenwire.commands import options
from tokenwire.commands.check import ask
from tokenwire.config import KEYS, OWN_FILE, TABLES
from tokenwire.judging.verdict import ExitStatus
from tokenwire.report.files import write_whole
from tokenwire.report.subject import Subject
from tokenwire.target.determinism import PROBE
from tokenwire.wire.credentials import from_environment
from tokenwire.wire.redaction import Headers, names_credential

EXAMPLES = options.examples(
    "tokenwire init --target http://127.0.0.1:30000",
    "tokenwire init --target https://api.example.org --header 'Authorization: Bearer env:MY_KEY'",
)

_COMMENTS = {
    "target": "Base URL of the server. The command line beats this file: tokenwire check --target URL.",
    "worker": "The server behind the target, if that is a gateway: both are asked the same.",
    "model": "The model to ask for; without it, the first that the server lists.",
    "dialects": "Ask only these; without it, all that the server speaks. These it spoke:",
    "capabilities": "What the server has: not to show one of these is a violation. Seen so far:",
    "profiles": "Judge only what these profiles hold; `tokenwire list profiles` tells all.",
    "budget": "How much to ask: quick, standard or soak.",
    "tokenizer": "Folder of the model's tokenizer.json; without it, the server itself is asked.",
    "baseline": "The failures that are known. `tokenwire baseline update` writes it.",
    "headers": "Sent with every request. Keys come from environment variables, and are recorded nowhere.",
    "timeout": "Seconds for one exchange.",
    "max-concurrency": "Exchanges at a time.",
    "max-tokens": "Output tokens that all asks may hold together.",
    "max-requests": "Requests in all, at most.",
    "price": "What a million prompt tokens and a million output tokens cost.",
    "max-cost": "What all requests may cost by that price.",
    "rate": "Requests in a second, at most.",
    "gentle": "Ask nothing that servers died of, and no storms: for a server that others use.",
    "without": "Leave these scenarios out; `tokenwire list scenarios` tells all.",
    "keep-failures": "Whether what failed is kept in .tokenwire/last, for `tokenwire again`.",
    "restart": "Run in a shell when the server died; the run goes on when it is back.",
    "wait": "Seconds that a server which died may take to be back.",
}
_OWN_COMMENTS = {
    "watch": {
        "listen": "Where clients connect.",
        "admin": "Where the live page and /metrics are.",
        "record": "Keep exchanges that violate there.",
        "record-cap": "MiB that they may take; the oldest go.",
        "drain": "Seconds to judge what is left when it ends.",
    },
}


def _value(value: Any) -> str:
    """A value in TOML: JSON but for tables."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(name)} = {_value(each)}' for name, each in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)


def settings(known: Mapping[str, Any], proposed: Mapping[str, Any], about: str) -> Iterator[str]:
    """The lines of a file of settings: what is known, and commented out what else can be said."""
    yield f"# Settings of tokenwire. {about}"
    for name, key in KEYS.items():
        yield ""
        yield f"# {_COMMENTS[name]}"
        if name in known:
            yield f"{name} = {_value(known[name])}"
        else:
            yield f"# {name} = {_value(proposed[name]) if proposed.get(name) else key.example}"
    for command, keys in TABLES.items():
        yield ""
        yield f"# For `tokenwire {command}` alone; it stands below all that is for every command."
        yield f"# [{command}]"
        for name, key in keys.items():
            yield f"# {name} = {key.example}  # {_OWN_COMMENTS[command][name]}"


def _seen(subject: Subject) -> list[str]:
    known = {name: each for run in subject.runs for name, each in run.capabilities.items()}
    return sorted(name for name in options.declarable() if name in known and known[name].seen)


def _storable(headers: Headers) -> dict[str, str]:
    """The headers that may stand in a file. Raises BadParameter for a credential."""
    for name, value in headers:
        if names_credential(name) and not from_environment(value):
            raise typer.BadParameter(
                f"--header {name} holds a credential, which must not stand in a file; put it into an "
                f"environment variable and write --header '{name}: env:MY_KEY'"
            )
    return dict(headers)


def init(
    context: typer.Context,
    *,
    target: options.Target,
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="The file to write.")] = Path(OWN_FILE),
    model: options.Model = "",
    header: options.SentHeaders = None,
    timeout: options.Timeout = 60.0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
) -> None:
    """Ask a server a few questions and write tokenwire.toml, with a comment on every setting.

    Exit status: 0 written, 2 wrong command line, 4 the target could not be reached.
    """
    if file.exists() and not force:
        raise typer.BadParameter(
            f"{file} is there already; overwrite it with --force, or name another --file"
        )
    options.writable(file, "--file")
    headers = _storable(options.headers_of(header))
    plan = options.plan_of(context, target, scenario=[PROBE], budget=Budget.QUICK)
    subject = ask(plan, verbosity=verbose - quiet)
    if isinstance(subject, Unreached):
        typer.echo(subject.diagnosis)
        raise typer.Exit(ExitStatus.NOTHING_EVALUATED)
    known: dict[str, Any] = {"target": target, "budget": "standard"}
    known |= {"model": model} if model else {}
    known |= {"timeout": timeout} if options.given(context, "timeout") else {}
    proposed = {"dialects": list(subject.dialects), "capabilities": _seen(subject)}
    server = subject.runs[0].advertised
    name = " ".join(filter(None, (server.name, server.version))) or "a server that does not tell its name"
    lines = settings({**known, **({"headers": headers} if headers else {})}, proposed, f"Written for {name}.")
    write_whole(file, "\n".join(lines) + "\n")
    typer.echo(f"{file} is written: {name} speaks {', '.join(subject.dialects)}. Next: tokenwire check")
