"""A comparison on the terminal: one screen that answers the question, then families, the gravest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby

from rich.console import Console
from rich.text import Text

from tokenwire.judging.verdict import Verdict
from tokenwire.record import Place
from tokenwire.report.wording import cut, where
from tokenwire.typed_table import counted
from tokenwire_twin.answers import Gravity
from tokenwire_twin.difference_report import LABELS, DifferenceReport
from tokenwire_twin.families import Family
from tokenwire_twin.verdicts import VerdictDifference

_LONGEST_LINE = 118
_LONGEST_REASON = 160
_MOST_NAMED = 2
_MOST_LINES = 118
"""Lines of a whole comparison without -v."""
_PLAIN = frozenset({"field", "endpoint", "status", "finish"})
"""Kinds whose families say it all: an example adds nothing."""
_OF_THE_SUMMARY = tuple(gravity for gravity in Gravity if gravity is not Gravity.REMARKS)
_BROKEN = frozenset({Verdict.FAIL, Verdict.WARN})


def _named(names: Sequence[str], most: int = _MOST_NAMED) -> str:
    more = len(names) - most
    return ", ".join([*names[:most], *([f"{more} more"] if more > 0 else [])])


def _place(label: str, place: Place | None, excerpt: str) -> str:
    return f"\n    {label}: {where(place)}  {cut(excerpt, _LONGEST_REASON)}" if place is not None else ""


def _counts(family: Family) -> str:
    """Return how often a family shows, and where."""
    return ", ".join(f"{count:,} at {dialect}" for dialect, count in family.at.items())


_Lines = Sequence[Sequence[Family]]


def _lines(families: Iterable[Family]) -> _Lines:
    """Group the families of one subject that show in the same exchanges: they have one line."""
    groups: dict[tuple[str, ...], list[Family]] = {}
    for family in families:
        groups.setdefault(family.exchanges, []).append(family)
    return list(groups.values())


def _joined(families: Sequence[Family]) -> str:
    """Return the names of families in one line: those that say the same are named together."""
    words = []
    for says, group in groupby(sorted(families, key=lambda family: family.says), lambda family: family.says):
        same = list(group)
        subjects = ", ".join(filter(None, (family.subject for family in same)))
        words.append(f"{' '.join(filter(None, (same[0].kind, subjects)))}: {says}")
    return "; ".join(words)


def _family_lines(families: Sequence[Family], *, verbose: bool) -> Iterator[Text]:
    """Yield the lines of families with the same exchanges: what, how often and where, and one example."""
    first = families[0]
    style = "bold red" if any(family.decides for family in families) else "bold"
    text = Text(f"  {_joined(families)}", style)
    text.append(f"  [{_counts(first)}]", "dim")
    known = next(filter(None, (family.known for family in families)), "")
    if known:
        text.append(f"  known: {known}", "dim")
    elif first.by_chance:
        text.append("  by chance: a side contradicts itself there", "dim")
    yield text
    if verbose:
        for family in families:
            example = family.example
            sides = zip(LABELS, (example.one, example.other), example.excerpts, strict=True)
            detail = (
                f"    {family.subject or family.kind}: {example.message}\n    in {_named(family.exchanges)}"
            )
            yield Text(detail + "".join(_place(*side) for side in sides), "dim")
    elif not {family.kind for family in families} <= _PLAIN:
        shown = next(family for family in families if family.kind not in _PLAIN)
        words = f"{shown.example.exchange}: {shown.example.message}"
        yield Text(f"      {cut(words, _LONGEST_LINE - 6)}", "dim")


def _subject_words(gravity: Gravity, report: DifferenceReport) -> str:
    """Return what the summary says of a subject."""
    families = [family for family in report.families if family.gravity is gravity]
    deciding = [family for family in families if family.decides]
    answers = report.compared.get(gravity, 0)
    if deciding:
        differing = len({name for family in deciding for name in family.exchanges})
        return f"{differing:,} exchanges: {_joined(deciding[:1])}"
    known = sum(bool(family.known) for family in families)
    beside = f"; {known} known" if known else ""
    chance = sum(family.by_chance for family in families)
    beside += f"; {chance} by chance" if chance else ""
    if answers:
        return f"the same in {answers:,} answers{beside}"
    if gravity in {Gravity.SERVED, Gravity.ERRORS}:
        return f"the same{beside}"
    return "not compared"


def _row_words(report: DifferenceReport) -> str:
    shown = [row for row in report.verdicts if row.decides]
    known = sum(bool(row.known) for row in report.verdicts)
    if not shown:
        return f"the same of {report.requirements} that both decided" + (f"; {known} known" if known else "")
    words = []
    for label in LABELS:
        broken = sum(_broken_by(row) == label for row in shown)
        words += [f"{broken} broken by {label} alone"] if broken else []
    apart = sum(_broken_by(row) == "both" for row in shown)
    words += [f"{apart} by both in different ways"] if apart else []
    other = sum(_broken_by(row) == "" for row in shown)
    words += [f"{other} otherwise"] if other else []
    return ", ".join(words) or f"{len(shown)} differ"


def _broken_by(row: VerdictDifference) -> str:
    broken = [verdict in _BROKEN for verdict in (row.one, row.other)]
    return "both" if all(broken) else LABELS[broken.index(True)] if any(broken) else ""


def _summary(report: DifferenceReport) -> Iterator[Text]:
    for gravity in _OF_THE_SUMMARY:
        is_row = gravity is Gravity.ROWS
        families = [family for family in report.families if family.gravity is gravity and family.decides]
        rows = [row for row in report.verdicts if row.decides]
        count = len(rows) if is_row else len(families)
        words = _row_words(report) if is_row else _subject_words(gravity, report)
        line = f"  {gravity:<16}{count or '-':>4}  {cut(words, _LONGEST_LINE - 24)}"
        yield Text(line, "bold" if count else "dim")


def _rows(rows: Sequence[VerdictDifference], *, verbose: bool) -> Iterator[list[Text]]:
    """Yield the lines of each row; those that follow from another are counted at its end."""
    following: dict[str, list[str]] = {}
    names = {row.requirement for row in rows}
    for row in rows:
        if row.follows in names:
            following.setdefault(row.follows, []).append(row.requirement)
    causes = [row for row in rows if row.follows not in names or verbose]
    for row in sorted(causes, key=lambda row: (row.level != "MUST", _broken_by(row) == "both")):
        text = Text(f"  {row.requirement}", "bold red" if row.decides else "bold")
        text.append(f"  {row.one or '-'} in A, {row.other or '-'} in B", "bold")
        if more := following.get(row.requirement):
            text.append(f" (and {len(more)} that follow)", "dim")
        if row.known:
            text.append(f"  known: {row.known}", "dim")
        why = " | ".join(why for why in (row.why_one, row.why_other) if why)
        if verbose:
            yield [text, Text(f"      {cut(why, 2 * _LONGEST_REASON)}", "dim")]
        else:
            text.append(f"  {cut(why, max(40, _LONGEST_LINE - len(text.plain)))}", "dim")
            yield [text]


_Block = tuple[str, list[list[Text]]]
"""A subject, and the lines of each of its families."""


def _shortened(blocks: Sequence[_Block], room: int) -> list[_Block]:
    """Return the subjects with as many families as have room: those with most lines lose some first."""
    shown = {subject: len(families) for subject, families in blocks}

    def lines(subject: str, families: list[list[Text]]) -> int:
        return sum(map(len, families[: shown[subject]])) + (shown[subject] < len(families))

    while sum(2 + lines(*block) for block in blocks) > room and any(most > 1 for most in shown.values()):
        longest = max((block for block in blocks if shown[block[0]] > 1), key=lambda block: lines(*block))
        shown[longest[0]] -= 1
    short = []
    for subject, families in blocks:
        more = len(families) - shown[subject]
        rest = [[Text(f"  … {more} more: -v tells them", "dim")]] if more else []
        short.append((subject, families[: shown[subject]] + rest))
    return short


def print_difference(console: Console, report: DifferenceReport, *, verbose: bool = False) -> None:
    """Print a comparison. `verbose` includes remarks: undecided verdicts, cuts, different requests."""

    def say(text: Text) -> None:
        console.print(text, soft_wrap=True)

    head = [Text(f"{label}: {name}") for label, name in zip(LABELS, (report.one, report.other), strict=True)]
    head += [Text(f"mind: {hint}", "yellow") for hint in report.hints]
    head += [Text(report.outcome, "bold"), *_summary(report), *_not_compared(report)]
    for line in head:
        say(line)
    blocks = list(_blocks(report, verbose=verbose))
    for subject, families in blocks if verbose else _shortened(blocks, _MOST_LINES - len(head) - 2):
        say(Text(f"\n{subject}"))
        for line in chain.from_iterable(families):
            say(line)
    say(Text(f"\nA and B: {report.outcome} ({_counted(report)})", "bold"))


def _blocks(report: DifferenceReport, *, verbose: bool) -> Iterator[_Block]:
    for gravity, group in groupby(report.families, key=lambda family: family.gravity):
        families = [family for family in group if verbose or family.decides]
        if families:
            yield gravity, [list(_family_lines(several, verbose=verbose)) for several in _lines(families)]
    rows = [row for row in report.verdicts if row.decides or verbose]
    if rows:
        yield Gravity.ROWS, list(_rows(rows, verbose=verbose))


def _not_compared(report: DifferenceReport) -> Iterator[Text]:
    """Yield what was not compared, and what is shown by -v alone."""
    asked = {name for family in report.families if family.kind == "request" for name in family.exchanges}
    if asked:
        names = sorted(asked)
        words = (
            f"not compared: {counted(len(asked), 'exchange')} that were asked differently ({_named(names)})"
        )
        yield Text(words, "dim")
    for label, only in zip(LABELS, (report.only_one, report.only_other), strict=True):
        if only:
            yield Text(f"only in {label}: {counted(len(only), 'exchange')} ({_named(only)})", "dim")
    for fault in report.faults:
        yield Text(f"known differences: {fault}", "bold red")


def _counted(report: DifferenceReport) -> str:
    """Describe the numbers of differences and of comparisons."""
    verdicts = sum(row.decides for row in report.verdicts)
    families = sum(family.decides for family in report.families)
    differing = f"{families} families and {verdicts} promises; " if report.differ else ""
    undecided = sum(not row.decides for row in report.verdicts)
    remarks = sum(not family.decides for family in report.families)
    more = f"; -v tells {undecided} undecided verdicts and {remarks} remarks" if undecided + remarks else ""
    return (
        f"{differing}compared: {report.requirements} requirements, {report.exchanges} exchanges, "
        f"{report.repeated} of them by value{more}"
    )
