"""Options that several commands take, and what their values must be."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tokenwire.asking.planning import NotPlanned, planned
from tokenwire.asking.run import Plan
from tokenwire.asking.scenario import Budget, load_scenarios
from tokenwire.config import Config, ConfigError, find_config, read_config
from tokenwire.dialects.dialect import load_dialects
from tokenwire.dialects.markup import load_markup
from tokenwire.report.files import Outputs, system_says, why_not_appendable, why_unwritable
from tokenwire.requirement import load_requirements
from tokenwire.target.advertised import LOGPROB_RULES
from tokenwire.target.capability import DECLARED_RULE, known_capabilities
from tokenwire.typed_table import suggestion


def _several(kind: str) -> str:
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"


def known(kind: str, names: Iterable[str], every: Collection[str]) -> tuple[str, ...]:
    """The names, all of which must be known. Raises BadParameter with what was probably meant."""
    for name in names:
        if name not in every:
            hint = suggestion(name, every, f"`tokenwire list {_several(kind)}` tells all")
            raise typer.BadParameter(f"there is no {kind} {name!r}; {hint}")
    return tuple(names)


def declarable() -> dict[str, str]:
    """The capabilities that requirements speak of; to declare another would change no verdict."""
    spoken_of = {name for row in load_requirements().values() for name in row.applies_when}
    spoken_of = spoken_of - {DECLARED_RULE} | set(LOGPROB_RULES)
    return {name: absent for name, absent in known_capabilities().items() if name in spoken_of}


def header(line: str) -> tuple[str, str]:
    """A header of the command line. Raises BadParameter for a line that is none, and does not repeat it."""
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise typer.BadParameter("a --header without a colon is no header; write --header 'Name: value'")
    return name.strip(), value.strip()


def _configured(context: typer.Context, file: Path | None) -> Path | None:
    """Make the settings of a file the defaults of all options that come after it."""
    try:
        config = read_config(file) if file is not None else find_config(Path.cwd())
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    own = config.defaults_of(context.info_name or "")
    context.default_map = {**(context.default_map or {}), **own}
    context.obj = config
    return file


def config_of(context: typer.Context) -> Config:
    """The settings that a command was started with."""
    return context.obj if isinstance(context.obj, Config) else Config()


def given(context: typer.Context, parameter: str) -> bool:
    """Whether an option stands on the command line, and not only in a file."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def filters(context: typer.Context) -> tuple[str, ...]:
    """The options on the command line that leave out something that was asked or judged."""
    names = {
        "dialect": "--dialect",
        "scenario": "--scenario",
        "requirement": "--requirement",
        "profile": "--profile",
        "max_tokens": "--max-tokens",
        "max_requests": "--max-requests",
        "max_cost": "--max-cost",
        "without": "--without",
        "gentle": "--gentle",
        "keyword": "-k",
        "stop_at_first": "-x",
        "last_failed": "--lf",
    }
    return tuple(option for name, option in names.items() if given(context, name))


def headers_of(
    lines: Sequence[str] | None, others: Iterable[tuple[str, str]] = ()
) -> tuple[tuple[str, str], ...]:
    """The headers to send: those of the command line, each in the place of others of its name.

    Raises BadParameter for a line that is no header.
    """
    own = tuple(header(line) for line in lines or ())
    names = {name.lower() for name, _ in own}
    return (*(each for each in others if each[0].lower() not in names), *own)


def plan_of(context: typer.Context, target: str, *, configured: bool = True, **fixed: Any) -> Plan:
    """The plan that a command's options amount to, and what it fixes itself. Raises BadParameter.

    A header of the command line takes the place of one of that name in the file. Without `configured`, those
    of the file are not sent.
    """
    options = context.params | fixed
    known("dialect", options.get("dialect") or (), load_dialects())
    for option in ("scenario", "without"):
        known("scenario", options.get(option) or (), load_scenarios())
    known("capability", options.get("declare") or (), declarable())
    forms = load_markup()[1]
    if (form := options.get("channels")) and form not in forms:
        raise typer.BadParameter(
            f"--channels {form} is no form of tool calls; it is one of {', '.join(forms)}"
        )
    file = config_of(context).headers if configured else ()
    try:
        return planned(target, options, headers_of(options["header"], file))
    except NotPlanned as error:
        raise typer.BadParameter(str(error)) from error


def writable(file: Path, option: str) -> Path:
    """Make the folder of a file. Raises BadParameter where the file cannot be written."""
    if refusal := why_unwritable(file):
        raise typer.BadParameter(f"{option}: {refusal}")
    return file


def writable_folder(folder: Path, option: str) -> Path:
    """Make a folder. Raises BadParameter where nothing can be written there."""
    if refusal := why_unwritable(folder / "capture"):
        raise typer.BadParameter(f"{option}: {refusal}")
    return folder


def empty_folder(folder: Path, option: str) -> Path:
    """Make a folder. Raises BadParameter where something lies already, or nothing can be written."""
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise typer.BadParameter(f"{option} {folder} cannot be read: {system_says(error)}") from error
    if taken:
        raise typer.BadParameter(f"{option} {folder} is not an empty folder; give a new one for each run")
    return writable_folder(folder, option)


def writable_outputs(outputs: Outputs, environment: Mapping[str, str] = os.environ) -> Outputs:
    """Raises BadParameter where one of the files, or the summary of a workflow's step, cannot be written."""
    for file in outputs.files():
        writable(file, "the report")
    if (summary := environment.get("GITHUB_STEP_SUMMARY")) and (refusal := why_not_appendable(Path(summary))):
        raise typer.BadParameter(
            f"GITHUB_STEP_SUMMARY: {refusal}; unset it, or name a file that can be written"
        )
    return outputs


def examples(*lines: str) -> str:
    """The end of a help page: one example to a line, as they are to be typed."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def folded(text: str) -> str:
    """A text on one line."""
    return re.sub(r"\s+", " ", text).strip()


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=_configured,
        help="Take settings from this file, not from the nearest tokenwire.toml or pyproject.toml.",
    ),
]
Target = Annotated[str, typer.Option("--target", metavar="URL", help="Base URL of the server.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")]
Junit = Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write the report as JUnit XML.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one page.")]
Sarif = Annotated[Path | None, typer.Option("--sarif", metavar="FILE", help="Write the report as SARIF.")]
Badge = Annotated[Path | None, typer.Option("--badge", metavar="FILE", help="Write the JSON of a badge.")]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", help="Write the run as a trace: open it at ui.perfetto.dev, or offline."
    ),
]
ReportFolder = Annotated[
    Path | None, typer.Option("--report", metavar="DIR", help="Write the report there in every form.")
]
TallyFile = Annotated[
    Path | None,
    typer.Option("--tally", metavar="FILE", help="Write what `tokenwire merge` makes one report of."),
]
BaselineFile = Annotated[
    Path | None,
    typer.Option("--baseline", metavar="FILE", help="Tolerate the failures that this file knows."),
]
Profiles = Annotated[
    list[str] | None,
    typer.Option("--profile", metavar="NAME", help="Judge only what this profile holds; repeatable."),
]
Requirements = Annotated[
    list[str] | None,
    typer.Option("--requirement", metavar="ID", help="Judge only this, whatever the profile; repeatable."),
]
Keyword = Annotated[str, typer.Option("-k", metavar="EXPR", help="Judge only what matches, as in pytest.")]
StopAtFirst = Annotated[bool, typer.Option("-x", help="Stop at the first violation, as in pytest.")]
LastFailed = Annotated[bool, typer.Option("--lf", help="Judge only what failed last time, as in pytest.")]
TokenizerFolder = Annotated[
    Path | None,
    typer.Option("--tokenizer", metavar="DIR", help="Hold text against ids by DIR/tokenizer.json."),
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Seconds for one exchange.")
]
MaxConcurrency = Annotated[
    int, typer.Option("--max-concurrency", metavar="N", min=1, help="Exchanges at a time.")
]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", metavar="N", min=1, help="Output tokens to ask for, at most, in all."),
]
MaxRequests = Annotated[
    int | None, typer.Option("--max-requests", metavar="N", min=1, help="Requests to send, at most, in all.")
]
PriceOfTokens = Annotated[
    str, typer.Option("--price", metavar="IN,OUT", help="What a million prompt and output tokens cost.")
]
MaxCost = Annotated[
    float | None,
    typer.Option("--max-cost", metavar="X", min=0, help="What all of it may cost by --price, at most."),
]
Rate = Annotated[
    float | None, typer.Option("--rate", metavar="N", min=0.001, help="Requests in a second, at most.")
]
Dialects = Annotated[
    list[str] | None, typer.Option("--dialect", metavar="NAME", help="Only this dialect; repeatable.")
]
Model = Annotated[
    str, typer.Option("--model", metavar="NAME", help="Ask for this model, not for the first one listed.")
]
Scenarios = Annotated[
    list[str] | None, typer.Option("--scenario", metavar="NAME", help="Ask only this scenario; repeatable.")
]
Without = Annotated[
    list[str] | None, typer.Option("--without", metavar="NAME", help="Leave this scenario out; repeatable.")
]
Channels = Annotated[
    str,
    typer.Option(
        "--channels",
        metavar="FORM",
        help=f"How the model writes tool calls: {', '.join(load_markup()[1])}. Found out if not said.",
    ),
]
Gentle = Annotated[
    bool,
    typer.Option(
        "--gentle", help="Ask nothing that servers died of, and no storms: for a server that others use."
    ),
]
Restart = Annotated[
    str,
    typer.Option(
        "--restart",
        metavar="COMMAND",
        help="Run this in a shell when the server died, and go on when it is back.",
    ),
]
Wait = Annotated[
    float | None,
    typer.Option(
        "--wait",
        metavar="SECONDS",
        min=0.1,
        help="When the server died, wait so long for it to be back, and go on.",
    ),
]
AskBudget = Annotated[
    Budget, typer.Option(help="How much to ask: the essentials, the usual, or all of it in many shapes.")
]
Worker = Annotated[
    str, typer.Option("--worker", metavar="URL", help="The server behind the target, if that is a gateway.")
]
SentHeaders = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="'NAME: VALUE'",
        help="Send this too; env:NAME in a value stands for an environment variable. Repeatable.",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs", metavar="N", min=1, help="Read and judge in N processes; the verdicts are the same."
    ),
]
Verbose = Annotated[
    bool,
    typer.Option("-v", "--verbose", help="Show every requirement and reason, and each exchange as it ends."),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print only failures and the last line.")]
