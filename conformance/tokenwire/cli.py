"""The command line: `tokenwire check`, `tokenwire replay`, `tokenwire list`."""

from __future__ import annotations

import asyncio
import difflib
import sys
import traceback
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from tokenwire import __version__
from tokenwire.capability import known_capabilities
from tokenwire.capture import CaptureError
from tokenwire.commands.watch import watch
from tokenwire.dialect import load_dialects
from tokenwire.exploration import NothingToDrawWith, demand_hypothesis
from tokenwire.judge import judge
from tokenwire.politeness import Limits
from tokenwire.pytest_plugin import run_items
from tokenwire.replay import NothingToReplay
from tokenwire.replay import replay as read_captures
from tokenwire.report.document import document
from tokenwire.report.files import Outputs, tell_github, write_reports
from tokenwire.report.subject import Subject
from tokenwire.report.terminal import make_console, print_report
from tokenwire.requirement import load_requirements
from tokenwire.run import NoSuchTarget, Plan, Unreached, interrogate
from tokenwire.scenario import Budget, load_scenarios
from tokenwire.terminal_progress import TerminalProgress
from tokenwire.tokenizer import LocalTokenizer, NoTokenizer, Tokenizer
from tokenwire.verdict import ExitStatus, exit_status

_INTERRUPTED = 130
_PYTEST_COULD_NOT_RUN = {2: _INTERRUPTED, 3: ExitStatus.HARNESS_ERROR, 4: ExitStatus.USAGE}
"""pytest's own exit codes that are not about tests."""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Checks what an LLM inference server puts on the wire for every token.",
)

Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")]
Junit = Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write the report as JUnit XML.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one page.")]
Sarif = Annotated[Path | None, typer.Option("--sarif", metavar="FILE", help="Write the report as SARIF.")]
Badge = Annotated[Path | None, typer.Option("--badge", metavar="FILE", help="Write the JSON of a badge.")]
ReportFolder = Annotated[
    Path | None, typer.Option("--report", metavar="DIR", help="Write the report there in every form.")
]
Requirements = Annotated[
    list[str] | None,
    typer.Option("--requirement", metavar="ID", help="Judge only this requirement; repeatable."),
]
Keyword = Annotated[str, typer.Option("-k", metavar="EXPR", help="Judge only what matches, as in pytest.")]
StopAtFirst = Annotated[bool, typer.Option("-x", help="Stop at the first violation, as in pytest.")]
LastFailed = Annotated[bool, typer.Option("--lf", help="Judge only what failed last time, as in pytest.")]
TokenizerFolder = Annotated[
    Path | None,
    typer.Option("--tokenizer", metavar="DIR", help="Hold text against ids by DIR/tokenizer.json."),
]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Tell every reason in full.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print only failures and the last line.")]


@dataclass(frozen=True)
class _Reporting:
    """What to judge and where to tell it."""

    requirements: tuple[str, ...]
    keyword: str
    stop_at_first: bool
    last_failed: bool
    outputs: Outputs
    verbosity: int


def _several(kind: str) -> str:
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"


def _known(kind: str, names: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
    """The names, all of which must be known. Raises BadParameter with what was probably meant."""
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"`tokenwire list {_several(kind)}` tells all"
            raise typer.BadParameter(f"there is no {kind} {name!r}; {hint}")
    return tuple(names)


def _outputs(named: Outputs, folder: Path | None) -> Outputs:
    """The files that were named, and all others in the folder where one was."""
    return named.beside(Outputs.within(folder)) if folder is not None else named


def _tokenizer(folder: Path | None) -> Tokenizer | None:
    """The tokenizer in a folder. Raises BadParameter where there is none, or nothing to read it with."""
    try:
        return LocalTokenizer(folder) if folder is not None else None
    except NoTokenizer as error:
        raise typer.BadParameter(str(error)) from error


def _declarable() -> dict[str, str]:
    """The capabilities that requirements speak of; to declare another would change no verdict."""
    spoken_of = {name for row in load_requirements().values() for name in row.applies_when}
    return {name: absent for name, absent in known_capabilities().items() if name in spoken_of}


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise typer.BadParameter(f"{line!r} is no header; write --header 'Name: value'")
    return name.strip(), value.strip()


def _tell(subject: Subject, reporting: _Reporting, console: Console) -> int:
    """Judge, report everywhere, and give the exit status."""
    known = load_requirements()
    wanted = [known[name] for name in reporting.requirements] if reporting.requirements else None
    ran, code = run_items(
        judge(subject.runs, wanted),
        subject,
        keyword=reporting.keyword,
        stop_at_first=reporting.stop_at_first,
        last_failed=reporting.last_failed,
        junit=reporting.outputs.junit,
    )
    if code in _PYTEST_COULD_NOT_RUN:  # it has said why
        return _PYTEST_COULD_NOT_RUN[code]
    status = exit_status(judgement.verdict for judgement in ran)
    if subject.broken_off and status == ExitStatus.CONFORMS:
        status = ExitStatus.NOTHING_EVALUATED
    report = document(subject, ran, status)
    print_report(console, report, verbosity=reporting.verbosity)
    write_reports(report, reporting.outputs)
    for line in tell_github(report):
        typer.echo(line)
    return status


@app.command()
def check(
    *,
    target: Annotated[str, typer.Option("--target", metavar="URL", help="Base URL of the server.")],
    json: Json = None,
    junit: Junit = None,
    html: Html = None,
    sarif: Sarif = None,
    badge: Badge = None,
    report: ReportFolder = None,
    record: Annotated[
        Path | None, typer.Option("--record", metavar="DIR", help="Write every exchange there as it arrives.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds for one exchange.")] = 60.0,
    max_concurrency: Annotated[
        int, typer.Option("--max-concurrency", min=1, help="Exchanges at a time.")
    ] = 16,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Output tokens that all asks may hold together.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, help="Requests in a second, at most.")
    ] = None,
    dialect: Annotated[
        list[str] | None, typer.Option("--dialect", metavar="NAME", help="Only this dialect; repeatable.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="Ask for this model, not for the first one listed.")
    ] = "",
    scenario: Annotated[
        list[str] | None,
        typer.Option("--scenario", metavar="NAME", help="Ask only this scenario; repeatable."),
    ] = None,
    budget: Annotated[
        Budget,
        typer.Option(help="How much to ask: the essentials, the usual, or all of it in many shapes."),
    ] = Budget.STANDARD,
    explore: Annotated[
        int, typer.Option("--explore", metavar="N", min=0, help="Let hypothesis draw N requests besides.")
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="What --explore draws by.")] = 0,
    tokenizer: TokenizerFolder = None,
    requirement: Requirements = None,
    declare: Annotated[
        list[str] | None,
        typer.Option("--declare", metavar="NAME", help="The server has this capability; repeatable."),
    ] = None,
    worker: Annotated[
        str,
        typer.Option("--worker", metavar="URL", help="The server behind the target, if that is a gateway."),
    ] = "",
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="'NAME: VALUE'", help="Send this too; repeatable.")
    ] = None,
    keyword: Keyword = "",
    stop_at_first: StopAtFirst = False,
    last_failed: LastFailed = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Check a running server: ask all scenarios, then judge every requirement.

    Exit status: 0 conforms, 1 violation, 2 usage, 3 the suite failed, 4 nothing was evaluated or the target
    could not be reached.
    """
    if record is not None and record.exists() and (not record.is_dir() or any(record.iterdir())):
        raise typer.BadParameter(f"--record {record} is not an empty folder; give a new one for each run")
    if explore:
        try:
            demand_hypothesis()
        except NothingToDrawWith as error:
            raise typer.BadParameter(str(error)) from error
    plan = Plan(
        url=target.rstrip("/"),
        timeout_s=timeout,
        limits=Limits(max_concurrency, max_tokens, rate),
        headers=tuple(map(_header, header or ())),
        record=record,
        dialects=_known("dialect", dialect or (), load_dialects()),
        scenarios=_known("scenario", scenario or (), load_scenarios()),
        model=model,
        tokenizer=_tokenizer(tokenizer),
        budget=budget,
        explore=explore,
        seed=seed,
        declared=_known("capability", declare or (), _declarable()),
        worker=worker.rstrip("/"),
    )
    reporting = _Reporting(
        _known("requirement", requirement or (), load_requirements()),
        keyword,
        stop_at_first,
        last_failed,
        _outputs(Outputs(json, junit, html, sarif, badge), report),
        verbose - quiet,
    )
    console = make_console()
    try:
        with TerminalProgress(make_console(stderr=True)) as progress:
            subject = asyncio.run(interrogate(plan, progress))
    except NoSuchTarget as error:
        raise typer.BadParameter(str(error)) from error
    if isinstance(subject, Unreached):
        console.print(Text(subject.diagnosis), soft_wrap=True)
        subject = subject.subject
    raise typer.Exit(_tell(subject, reporting, console))


@app.command()
def replay(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Captures, or folders of captures.")],
    *,
    json: Json = None,
    junit: Junit = None,
    html: Html = None,
    sarif: Sarif = None,
    badge: Badge = None,
    report: ReportFolder = None,
    tokenizer: TokenizerFolder = None,
    requirement: Requirements = None,
    keyword: Keyword = "",
    stop_at_first: StopAtFirst = False,
    last_failed: LastFailed = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Judge recorded exchanges: the same verdicts, and no server.

    A folder that `--record` wrote is one run; so is each file that holds many exchanges.
    """
    reporting = _Reporting(
        _known("requirement", requirement or (), load_requirements()),
        keyword,
        stop_at_first,
        last_failed,
        _outputs(Outputs(json, junit, html, sarif, badge), report),
        verbose - quiet,
    )
    try:
        subject = read_captures(paths, tokenizer=_tokenizer(tokenizer))
    except (NothingToReplay, CaptureError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    raise typer.Exit(_tell(subject, reporting, make_console()))


class Kind(StrEnum):
    """What can be listed."""

    REQUIREMENTS = "requirements"
    SCENARIOS = "scenarios"
    DIALECTS = "dialects"
    CAPABILITIES = "capabilities"


@app.command("list")
def list_names(
    what: Annotated[
        Kind, typer.Argument(metavar="[requirements|scenarios|dialects|capabilities]")
    ] = Kind.REQUIREMENTS,
) -> None:
    """Tell all requirements, scenarios, dialects or capabilities, one to a line."""
    match what:
        case Kind.REQUIREMENTS:
            rows = [(each.id, f"{each.level} {each.sentence}") for each in load_requirements().values()]
        case Kind.SCENARIOS:
            rows = [(each.name, each.provokes) for each in load_scenarios().values()]
        case Kind.DIALECTS:
            rows = [
                (each.name, f"{'|'.join(each.endpoint.methods)} {each.endpoint.path}")
                for each in load_dialects().values()
            ]
        case Kind.CAPABILITIES:
            rows = [(name, f"absent where {why}") for name, why in sorted(_declarable().items())]
    for name, words in rows:
        typer.echo(f"{name:36}  {words}")


app.command()(watch)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tokenwire {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Tell the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The program `tokenwire`. Whatever goes wrong inside the suite is told apart from a violation."""
    try:
        app()
    except Exception:  # the traceback is for us; the status must not blame the target
        traceback.print_exc()
        sys.exit(ExitStatus.HARNESS_ERROR)
