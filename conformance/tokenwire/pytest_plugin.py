"""Verdicts as pytest items, so that `-k`, `-x`, `--lf` and JUnit files work as usual.

`tokenwire check` and `tokenwire replay` pass their judgements to pytest with `run_items`. In other pytest
runs, `pytest -p tokenwire --tokenwire-target URL` does the same with pytest's own output. The settings in
`tokenwire.toml` apply there as well.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tokenwire.ask import Budget
from tokenwire.baselines.baseline import read_baseline
from tokenwire.baselines.tolerance import Fault, apply_baseline, outcomes_of, why_uncovered, with_reasons
from tokenwire.config import find_config
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.verdict import Verdict
from tokenwire.profile import load_profiles, selected
from tokenwire.replay import replay
from tokenwire.report.document import row
from tokenwire.report.failure import failure
from tokenwire.report.subject import Subject
from tokenwire.settings import Settings
from tokenwire.state import state_of
from tokenwire.usage_error import UsageError

_MARKERS = (
    "tokenwire: an item of this suite",
    "requirement(name): the requirement that an item judges",
    "chapter(name): its chapter in the specification",
    "level(name): MUST, SHOULD or MAY",
    "profile(name): a profile that the requirement belongs to",
)
_UNDECIDED = (Verdict.UNSUPPORTED, Verdict.NOT_TESTABLE, Verdict.INCONCLUSIVE)
_NOT_FOR_VERDICTS = (
    *("-p", "no:unraisableexception"),
    *("-p", "no:threadexception"),
    *("-p", "no:faulthandler"),
    *("-p", "no:logging"),
)
"""pytest plugins that watch tests for leaks and capture their logs.

These plugins are disabled: verdicts are not tests that can leak, and thousands of verdicts would be slow. The
first plugin runs the garbage collector five times.
"""


class _RequirementViolated(Exception):  # noqa: N818  # it is a verdict, not an error of the program
    """A MUST was violated."""


class _BaselineFaulty(Exception):  # noqa: N818  # it is a verdict, not an error of the program
    """An entry of the baseline is wrong."""


class _HarnessFailed(Exception):  # noqa: N818  # it is a verdict, not an error of the program
    """The suite crashed. The message is the traceback."""


def _node_id(judgement: Judgement) -> str:
    return f"{judgement.requirement.chapter}::{judgement.name}"


@cache
def _marks(requirement: str, chapter: str, level: str) -> tuple[pytest.MarkDecorator, ...]:
    """Return the pytest marks by which the items of a requirement can be selected."""
    named = [("requirement", requirement), ("chapter", chapter), ("level", level)]
    named += [("profile", name) for name, ids in load_profiles().items() if requirement in ids]
    return (pytest.mark.tokenwire, *(getattr(pytest.mark, name)(name=value) for name, value in named))


class _Item(pytest.Item):
    """A pytest item without a file.

    A failure shows only a message, because its traceback would always point to this module.
    """

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:  # noqa: ARG002  # the signature of the base class
        return str(excinfo.value)

    def reportinfo(self) -> tuple[os.PathLike[str], int | None, str]:
        return self.path, None, self.name


class ConformanceItem(_Item):
    """The verdict on one requirement in one scenario."""

    def __init__(
        self, *, judgement: Judgement, subject: Subject, **node: Any
    ) -> None:  # pytest passes these arguments
        super().__init__(**node)
        self.judgement = judgement
        self.subject = subject
        requirement = judgement.requirement
        self.extra_keyword_matches.update(
            {requirement.chapter, requirement.profile, requirement.level.value, requirement.contract}
        )
        self.user_properties.append(("verdict", judgement.verdict.value))
        self.user_properties.append(("witnesses", judgement.witnesses))
        for mark in _marks(requirement.id, requirement.chapter, requirement.level.value):
            self.add_marker(mark)

    def setup(self) -> None:
        """Raise a crash of the suite in the setup phase, so that pytest reports an error instead of a
        failure.
        """
        if self.judgement.verdict is Verdict.HARNESS_ERROR:
            raise _HarnessFailed(self.judgement.message)

    def runtest(self) -> None:
        if self.judgement.known:
            pytest.xfail(f"known: {self.judgement.message}: {self.judgement.known}")
        if self.judgement.verdict is Verdict.FAIL:
            raise _RequirementViolated(self.judgement.message)
        if self.judgement.verdict in _UNDECIDED:
            pytest.skip(f"{self.judgement.verdict}: {self.judgement.message}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        if isinstance(excinfo.value, _RequirementViolated):
            return failure(row(self.judgement, self.subject, most=0))
        return super().repr_failure(excinfo, style)


class _BaselineItem(_Item):
    """A wrong entry of the baseline."""

    def __init__(self, *, fault: Fault, **node: Any) -> None:  # pytest passes these arguments
        super().__init__(**node)
        self.fault = fault
        self.extra_keyword_matches.update({"baseline", fault.requirement, fault.scenario})
        self.add_marker("tokenwire")

    def runtest(self) -> None:
        raise _BaselineFaulty(f"{self.fault.kind}: {self.fault.message}")


@dataclass
class _ConformanceItems:
    """Replaces test files with the items of one run, and stores which items ran."""

    judgements: Sequence[Judgement]
    subject: Subject
    ran: list[Judgement] = field(default_factory=list)
    faults: Sequence[Fault] = ()
    """Wrong entries of the baseline. Each becomes an item."""
    quiet: bool = False
    """True to print nothing, because the suite prints its own report."""
    failures_only: bool = False
    """True to make items only for current and previous failures. pytest's cache stores failures only."""
    on_unwritten: Callable[[OSError], object] | None = None
    """A function that is called if pytest cannot write its file. If None, the error is raised."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Register the markers, and remove pytest's terminal report if the suite prints its own."""
        for marker in _MARKERS:
            config.addinivalue_line("markers", marker)
        if self.quiet:
            config.pluginmanager.unregister(name="terminalreporter")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """Make the items. Tests in the working folder are not collected."""
        session.items = [
            ConformanceItem.from_parent(
                session,
                name=judgement.name,
                nodeid=_node_id(judgement),
                judgement=judgement,
                subject=self.subject,
            )
            for judgement in self._judgements_to_run(session.config)
        ]
        session.items += [
            _BaselineItem.from_parent(session, name=fault.name, nodeid=f"baseline::{fault.name}", fault=fault)
            for fault in self.faults
        ]
        session.config.hook.pytest_collection_modifyitems(
            session=session, config=session.config, items=session.items
        )
        session.config.hook.pytest_collection_finish(session=session)
        session.testscollected = len(session.items)
        return True

    def _judgements_to_run(self, config: pytest.Config) -> Iterator[Judgement]:
        """Yield the judgements that become items."""
        cache = config.cache if self.failures_only else None  # None if pytest's cache is disabled
        failed = cache.get("cache/lastfailed", {}) if cache is not None else {}
        for judgement in self.judgements:
            fails = judgement.verdict in {Verdict.FAIL, Verdict.HARNESS_ERROR}
            if not self.failures_only or fails or _node_id(judgement) in failed:
                yield judgement

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, None, None]:
        """Catch the error if pytest cannot write its file, so that the verdicts are not lost."""
        try:
            yield
        except OSError as error:
            if self.on_unwritten is None:
                raise
            self.on_unwritten(error)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if isinstance(item, ConformanceItem):
            self.ran.append(item.judgement)


def run_items(
    judgements: Sequence[Judgement],
    subject: Subject,
    *,
    keyword: str = "",
    stop_at_first: bool = False,
    last_failed: bool = False,
    junit: Path | None = None,
    faults: Sequence[Fault] = (),
    on_unwritten: Callable[[OSError], object] | None = None,
) -> tuple[list[Judgement], int]:
    """Run the judgements as pytest items without output. Return the judgements that ran, and pytest's exit
    code.

    `on_unwritten` is called if `junit` cannot be written. Installed plugins, and the settings and plugins of
    the project in the working folder, are not loaded.
    """
    options = [
        "-c",
        os.devnull,
        "--rootdir",
        str(Path.cwd()),
        "--noconftest",
        "-o",
        "junit_suite_name=tokenwire",
        "-o",  # not in the working folder, which may contain malicious links
        f"cache_dir={state_of() / 'pytest'}",
        *_NOT_FOR_VERDICTS,
    ]
    options += ["-k", keyword] if keyword else []
    options += ["-x"] if stop_at_first else []
    options += ["--lf"] if last_failed else []
    options += [f"--junitxml={junit}"] if junit else []
    # Without a selection and an output file, pytest is only needed to store the failures.
    plain = not (keyword or stop_at_first or last_failed or junit)
    plugin = _ConformanceItems(
        judgements, subject, faults=faults, quiet=True, failures_only=plain, on_unwritten=on_unwritten
    )
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("PYTEST_ADDOPTS", raising=False)
        environment.delenv("PYTEST_PLUGINS", raising=False)
        environment.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        code = pytest.main(options, plugins=[plugin])
    if not plain:
        return plugin.ran, int(code)
    nothing_failed = code == pytest.ExitCode.NO_TESTS_COLLECTED
    return list(judgements), int(pytest.ExitCode.OK if nothing_failed else code)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tokenwire", "conformance of an inference server")
    group.addoption(
        "--tokenwire-target", metavar="URL", help="ask this server everything, and judge the answers"
    )
    group.addoption("--tokenwire-capture", metavar="PATH", help="judge the exchanges of this capture")
    group.addoption("--tokenwire-baseline", metavar="FILE", help="tolerate the failures that this file knows")
    group.addoption(
        "--tokenwire-budget", choices=[budget.value for budget in Budget], help="how much to ask the server"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Replace test files with the items of a target or a capture, if the user names one."""
    target, capture = config.getoption("--tokenwire-target"), config.getoption("--tokenwire-capture")
    if target and capture:
        raise pytest.UsageError("--tokenwire-target and --tokenwire-capture exclude each other; give one")
    if not target and not capture:
        return
    try:
        file = find_config(config.rootpath)
        named = {name: config.getoption(f"--tokenwire-{name}") for name in ("target", "budget", "baseline")}
        options = {**file.defaults, **{name: value for name, value in named.items() if value}}
        settings = Settings.of(options, file_headers=file.headers)
        baseline = read_baseline(settings.baseline) if settings.baseline else None
        subject = _asked(settings) if target else replay([Path(capture)])
    except (UsageError, OSError) as error:
        raise pytest.UsageError(str(error)) from error
    judgements: Sequence[Judgement] = judge(
        subject.runs, selected(settings.profile), limit_s=settings.judge_limit
    )
    faults: Sequence[Fault] = ()
    if baseline is not None:
        uncovered = why_uncovered(baseline, subject.broken_off, settings.budget if target else None)
        held = apply_baseline(baseline, outcomes_of(judgements), uncovered=uncovered, today=date.today())
        judgements, faults = with_reasons(judgements, held), held.faults
    config.pluginmanager.register(_ConformanceItems(judgements, subject, faults=faults), "tokenwire-items")


def _asked(settings: Settings) -> Subject:
    """Send requests to a target, and return the run. Raises UsageError if the target cannot be reached."""
    from tokenwire.asking.planning import planned
    from tokenwire.asking.run import Progress, Unreached, interrogate  # only a live run needs this import

    subject = asyncio.run(interrogate(planned(settings), Progress()))
    if isinstance(subject, Unreached):
        raise UsageError(subject.diagnosis)
    return subject
