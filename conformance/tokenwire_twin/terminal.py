"""The result of a comparison on the terminal: a summary that fits on one screen, then families, the most
serious first.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from tokenwire.judging.verdict import Verdict
from tokenwire.record import Place
from tokenwire.report.wording import cut, where
from tokenwire.typed_table import counted
from tokenwire_twin.causes import BODY_POSITION
from tokenwire_twin.difference import Gravity
from tokenwire_twin.difference_report import LABELS, DifferenceReport
from tokenwire_twin.families import Family
from tokenwire_twin.verdicts import VerdictDifference

_WIDEST = 100
"""The longest line without -v."""
_LONGEST_REASON = 160
_MOST_NAMED = 2
_MOST_SCENARIOS = 2
_MOST_FIELDS = 4
"""The most fields of refused requests in the summary."""
_MOST_LINES = 118
"""The most lines of a comparison without -v."""
_KEPT = 10
"""The larger this number, the less the order of subjects influences which of them is shortened."""
_SUMMARY_LINES = 3
"""The most lines of a subject in the summary."""
_EXAMPLE_LINES = 2
_MOST_NAMES_LINES = 2
"""The most lines for the names of families that are left out."""
_PLAIN = frozenset({"field", "endpoint", "status", "finish"})
"""Kinds of differences that are clear without an example."""
_NAME = 20
"""The width of a subject's name in the summary."""
_BRACKETS = "in brackets: the number of exchanges with the difference"
_LONGEST_MESSAGE = 100
"""The length up to which a server's message is printed whole."""
_CLAUSE = re.compile(r"(?<=[:;.,])(?= )")
"""Matches the border between two clauses of a message."""
_REFUSED = frozenset({Gravity.REFUSED_A, Gravity.REFUSED_B})
_OF_THE_SUMMARY = tuple(gravity for gravity in Gravity if gravity is not Gravity.REMARKS)
_HOLDS: Mapping[Gravity, str] = {
    Gravity.PROMPT: "the ids or the number of its prompt",
    Gravity.IDS: "output ids",
    Gravity.TEXT: "text that is not split into channels",
    Gravity.CHANNELS: "text that is split into reasoning, content and tool calls",
    Gravity.FINISH: "a finish reason",
    Gravity.LOGPROBS: "logprobs",
    Gravity.FIELDS: "fields",
}
"""The content that answers must have to be compared in a subject."""


def _named(names: Sequence[str], most: int = _MOST_NAMED) -> str:
    more = len(names) - most
    return ", ".join([*names[:most], *([f"{more} more"] if more > 0 else [])])


def _scenario(exchange: str) -> str:
    """Return the scenario in the name of an exchange."""
    return exchange.split("/")[-2] if "/" in exchange else exchange


def _scenarios(names: Iterable[str]) -> str:
    """Count the exchanges of each scenario, the most frequent first."""
    counts = Counter(map(_scenario, names)).most_common()
    words = [f"{count} of {name}" for name, count in counts[:_MOST_SCENARIOS]]
    if others := counts[_MOST_SCENARIOS:]:
        words.append(f"{sum(count for _, count in others)} of {counted(len(others), 'other scenario')}")
    return ", ".join(words)


def _place(label: str, place: Place | None, excerpt: str) -> str:
    return f"\n    {label}: {where(place)}  {cut(excerpt, _LONGEST_REASON)}" if place is not None else ""


def _width(console: Console) -> int:
    return min(console.width, _WIDEST)


def _folded(words: str, width: int, *, first: str = "", rest: str = "", most: int = 0) -> list[str]:
    """Wrap words to a width. `most`: the largest number of lines; 0 for no limit."""
    lines = textwrap.wrap(
        words,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        max_lines=most or None,
        placeholder=" …",
        break_on_hyphens=False,
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


_Item = tuple[Sequence[str], list[Text]]
"""The lines of one family, or of a requirement and its consequences, whose names are given."""
_Block = tuple[str, list[_Item]]
"""A subject, with its families or requirements."""

# Families.


def _counts(family: Family) -> str:
    """Describe how often and where a family was seen."""
    return ", ".join(f"{count:,} at {dialect}" for dialect, count in family.at.items())


_Lines = Sequence[Sequence[Family]]


def _lines(families: Iterable[Family]) -> _Lines:
    """Group families that have the same description and were seen in the same exchanges, because the families
    of a group share a line.
    """
    groups: dict[tuple[str, str, str, tuple[str, ...]], list[Family]] = {}
    for family in families:
        key = family.gravity, family.kind, family.says, family.exchanges
        groups.setdefault(key, []).append(family)
    return list(groups.values())


def _says(families: Sequence[Family]) -> str:
    """Return the common description of several families, without a common field of their requests."""
    family = families[0]
    subjects = ", ".join(filter(None, (family.subject for family in families)))
    match family.kind:
        case "status" | "channels":
            words = family.says
            if family.kind == "status":
                did, separator, reason = family.example.message.partition(": ")
                words = f"{did}{separator}{_short(reason)}"
        case "endpoint":
            words = f"{subjects}: {family.example.message}"
        case "field" if len(families) > 1:
            words = f"fields {subjects}: {family.says}"
        case _:
            words = f"{' '.join(filter(None, (family.kind, subjects)))}: {family.says}"
    return f"{words}, {family.leak}" if family.leak else words


def _short(words: str) -> str:
    """Return a message without the place in a body, and without its last clauses if it is long."""
    words = BODY_POSITION.sub("", words)
    if len(words) <= _LONGEST_MESSAGE:
        return words
    clauses = _CLAUSE.split(words)
    kept = clauses.pop(0)
    while clauses and len(kept) + len(clauses[0]) < _LONGEST_MESSAGE:
        kept += clauses.pop(0)
    return f"{cut(kept, _LONGEST_REASON)}{' …' if clauses else ''}"


def _explained(families: Sequence[Family]) -> str:
    """Return the common description of several families, with a common field of their requests."""
    family, words = families[0], _says(families)
    if family.kind != "status":
        return f"{words}; {family.asked}" if family.asked else words
    words = words.removeprefix(f"{_heading(family)}: ")
    if family.gravity is Gravity.FAILED:
        return ": ".join(filter(None, (family.asked, words)))
    return f"{family.asked or _requests_of(family)}: {words}"


def _requests_of(family: Family) -> str:
    """Name the scenarios of requests that have no field in common."""
    if family.count == 1:
        return f"in {family.exchanges[0]}"
    names = [name for name, _ in Counter(map(_scenario, family.exchanges)).most_common()]
    return f"in {_named(names)}{' scenarios' if len(names) > _MOST_NAMED else ''}"


def _heading(family: Family) -> str:
    """Return a heading about the statuses of both sides, if they have a reason; otherwise an empty text."""
    did, _, reason = family.example.message.partition(": ")
    return did if family.kind == "status" and reason else ""


def _whole(words: str) -> str:
    """Return a text that is not wrapped, because its spaces are replaced."""
    return words.replace(" ", "\N{NO-BREAK SPACE}")


def _family_lines(families: Sequence[Family], width: int, *, verbose: bool) -> Iterator[Text]:
    """Yield the lines for families that were seen in the same exchanges: names, counts and one example."""
    first = families[0]
    style = "bold red" if any(family.decides for family in families) else "bold"
    words = f"{_explained(families)} {_whole(f'[{_counts(first)}]')}"
    known = next(filter(None, (family.known for family in families)), "")
    if known:
        words += f" known: {known}"
    elif first.by_chance:
        words += " by chance: a side contradicts itself there"
    indent = "    " if _heading(first) else "  "
    folded = (
        [f"{indent}{words}".replace("\N{NO-BREAK SPACE}", " ")]
        if verbose
        else _folded(words, width, first=indent, rest=f"{indent}    ")
    )
    yield from (Text(line, style) for line in folded)
    if verbose:
        for family in families:
            example = family.example
            sides = zip(LABELS, (example.one, example.other), example.excerpts, strict=True)
            detail = f"    {family.name}\n    in {_named(family.exchanges)}: {example.message}"
            yield Text(detail + "".join(_place(*side) for side in sides), "dim")
    elif first.example.request or (first.kind not in _PLAIN and first.example.message != first.says):
        words = f"{first.example.exchange}: {first.example.request or first.example.message}"
        folded = _folded(words, width, first="      ", rest="      ", most=_EXAMPLE_LINES)
        yield from (Text(line, "dim") for line in folded)


def _family_blocks(families: Sequence[Family], width: int, *, verbose: bool) -> Iterator[list[Text]]:
    """Yield the lines of each family. Families with the same two statuses have a common heading."""
    counts = Counter[str]()
    for family in families:
        counts[_heading(family)] += family.count
    # Families without a heading come first, then families with the most frequent statuses.
    order = {heading: (bool(heading), -count) for heading, count in counts.items()}
    lines = sorted(_lines(families), key=lambda several: order[_heading(several[0])])
    for heading, group in groupby(lines, key=lambda several: _heading(several[0])):
        title = [Text(f"  {heading}:", "bold")] if heading else []
        for several in group:
            yield [*title, *_family_lines(several, width, verbose=verbose)]
            title = []


# The summary.


def _why_not_compared(gravity: Gravity, report: DifferenceReport) -> str:
    """Return the reason why no answers were compared in a subject."""
    if not report.repeated:
        return "no side repeats itself"
    what = _HOLDS[gravity]
    held = report.held.get(gravity, (0, 0))
    if not any(held):
        return f"no answer of A or B has {what}"
    if all(held):
        return f"answers have {what} on one side only: {held[0]:,} in A, {held[1]:,} in B"
    [holder, other] = LABELS if held[0] else LABELS[::-1]
    return f"no answer of {other} has {what}, {sum(held):,} of {holder} have"


def _refused(lines: _Lines) -> str:
    """Name the fields of the requests that were refused most often; if they are unknown, one refusal."""
    asked = [family.asked.removeprefix("with ") for family, *_ in lines if family.asked]
    if not asked:
        return _explained(lines[0])
    shown = asked[:_MOST_FIELDS]
    more = len(lines) - len(shown)
    return f"with {', '.join([*shown, *([f'{more} more'] if more else [])])}"


def _subject_words(gravity: Gravity, report: DifferenceReport, count: int) -> str:
    """Return the sentence about a subject for the summary."""
    families = [family for family in report.families if family.gravity is gravity]
    deciding = [family for family in families if family.decides]
    if deciding:
        differing = len({name for family in deciding for name in family.exchanges})
        lines = _lines(deciding)
        words = _refused(lines) if gravity in _REFUSED else _says(lines[0])
        return f"{count:>5}{differing:>11,}  {words}"
    known = sum(bool(family.known) for family in families)
    beside = f"; {known} known" if known else ""
    chance = sum(family.by_chance for family in families)
    beside += f"; {chance} by chance" if chance else ""
    if answers := report.compared.get(gravity, 0):
        return f" same in {answers:,} answers{beside}"
    if gravity not in _HOLDS:
        return f" {'same' if gravity is Gravity.ERRORS else 'none'}{beside}"
    return f" not compared: {_why_not_compared(gravity, report)}{beside}"


def _row_words(report: DifferenceReport) -> str:
    shown = [row for row in report.verdicts if row.decides]
    known = sum(bool(row.known) for row in report.verdicts)
    if not shown:
        return f" same in {report.requirements} that both decided" + (f"; {known} known" if known else "")
    counts = Counter(row.broken_by for row in shown)
    words = [f"{title}: {counts[who]}" for who, title in _BROKEN_BY.items() if counts[who]]
    return f"{len(shown):>5}{'':13}broken by {', '.join(words)}"


_BROKEN_BY = {
    "B": "B alone",
    "A": "A alone",
    "both": "both, but differently",
    "": "neither",
}
"""Groups of requirements by the sides that violate them, in the order of the report."""


def _summary(report: DifferenceReport, width: int) -> Iterator[Text]:
    heads = f"  {'':{_NAME}}kinds  exchanges  the first of them"
    if any(row.decides for row in report.rows):
        yield Text(heads, "dim")
    for gravity in _OF_THE_SUMMARY:
        families = [family for family in report.families if family.gravity is gravity and family.decides]
        count = len(_lines(families))
        if gravity is Gravity.ROWS:
            count = sum(row.decides for row in report.verdicts)
            words = _row_words(report)
        else:
            words = _subject_words(gravity, report, count)
        indent = _NAME + 20 if count else _NAME + 3
        head, words = words[: indent - _NAME - 2], words[indent - _NAME - 2 :]
        folded = _folded(
            words, width, first=f"  {gravity:<{_NAME}}{head}", rest=" " * indent, most=_SUMMARY_LINES
        )
        yield from (Text(line, "bold" if count else "dim") for line in folded)


# Requirements.


def _row_blocks(rows: Sequence[VerdictDifference], width: int, *, verbose: bool) -> Iterator[_Block]:
    """Yield the lines for the requirements that each side violates.

    Consequences are listed below their cause.
    """
    for who, title in _BROKEN_BY.items():
        mine = {row.requirement: row for row in rows if row.broken_by == who}
        following: dict[str, list[str]] = {}
        for row in mine.values():
            if (cause := _cause(row, mine)) is not row:
                following.setdefault(cause.requirement, []).append(row.requirement)
        causes = [row for row in mine.values() if verbose or _cause(row, mine) is row]
        causes.sort(key=lambda row: (row.worst is not Verdict.FAIL, -row.count))
        items: list[_Item] = []
        for row in causes:
            consequences = following.get(row.requirement, [])
            lines = list(_row(row, consequences, width, verbose=verbose))
            items.append(((row.requirement, *consequences), lines))
        if items:
            yield f"{Gravity.ROWS} broken by {title}: {len(mine)}", items


def _cause(row: VerdictDifference, rows: Mapping[str, VerdictDifference]) -> VerdictDifference:
    """Return the first cause of a requirement's violations among some rows, which may be the row itself."""
    seen = {row.requirement}
    while row.follows in rows and row.follows not in seen:
        row = rows[row.follows]
        seen.add(row.requirement)
    return row


def _row(row: VerdictDifference, following: Sequence[str], width: int, *, verbose: bool) -> Iterator[Text]:
    style = "bold red" if row.decides else "bold"
    words = f"{row.worst or row.one or row.other or 'not judged'}  {row.requirement}"
    if verbose:
        verdicts = f"{row.one or 'not judged'} in A, {row.other or 'not judged'} in B"
        yield Text(f"  {words}  {verdicts}" + (f"  known: {row.known}" if row.known else ""), style)
        for label, why in zip(LABELS, (row.why_one, row.why_other), strict=True):
            if why:
                yield Text(f"      {label}: {cut(why, 2 * _LONGEST_REASON)}", "dim")
    else:
        words += f" [{row.count:,}]" if row.count else ""
        words += f" known: {row.known}" if row.known else f": {row.message}" if row.message else ""
        [line] = _folded(words, width, first="  ", most=1)
        yield Text(line, style)
    if following:
        words = f"the same answers also break {', '.join(following)}"
        folded = _folded(words, width, first="      ", rest="      ")
        yield from (Text(line, "dim") for line in folded)


# Shortening:


def _cut_to(families: Sequence[_Item], most: int, width: int) -> list[Text]:
    """Return the lines of the first families, and a line about those that are left out."""
    lines = [line for _, some in families[:most] for line in some]
    if left := families[most:]:
        names = [name for names, _ in left for name in names]
        words = f"… {len(names) or len(left)} more: {', '.join(names) or '-v shows them'}"
        folded = _folded(words, width, first="  ", rest="    ", most=_MOST_NAMES_LINES)
        lines += [Text(line, "dim") for line in folded]
    return lines


def _shortened(blocks: Sequence[_Block], room: int, width: int) -> list[tuple[str, list[Text]]]:
    """Return the lines of each subject, with as many families as fit.

    Subjects with many lines are shortened before subjects with few lines. Serious subjects keep more lines.
    """
    shown = [len(families) for _, families in blocks]

    def lines(place: int) -> list[Text]:
        return _cut_to(blocks[place][1], shown[place], width)

    while sum(2 + len(lines(place)) for place in range(len(blocks))) > room:
        places = [place for place, most in enumerate(shown) if most > 1]
        if not places:
            break
        shown[max(places, key=lambda place: len(lines(place)) * (_KEPT + place))] -= 1
    return [(subject, lines(place)) for place, (subject, _) in enumerate(blocks)]


def print_difference(console: Console, report: DifferenceReport, *, verbose: bool = False) -> None:
    """Print a comparison.

    `verbose`: also print remarks, such as undecided verdicts and different requests.
    """
    width = _width(console)

    def say(text: Text) -> None:
        console.print(text, soft_wrap=True)

    head = []
    for label, name in zip(LABELS, (report.one, report.other), strict=True):
        head += [Text(line) for line in _folded(name, width, first=f"{label}: ", rest="   ")]
    for hint in report.hints:
        head += [Text(line, "yellow") for line in _folded(f"mind: {hint}", width, rest="  ")]
    if count := _not_compared_count(report):
        words = f"{counted(count, 'exchange')} {'is' if count == 1 else 'are'} not compared: see the end"
        head += [Text(line, "dim") for line in _folded(words, width, rest="  ")]
    head += [Text(report.outcome, "bold"), *_summary(report, width)]
    blocks = list(_blocks(report, width, verbose=verbose))
    head += [Text(f"  {_BRACKETS}", "dim")] if blocks else []
    for fault in report.faults:
        words = f"known differences: {fault}"
        head += [Text(line, "bold red") for line in _folded(words, width, rest="  ")]
    for line in head:
        say(line)
    foot = [Text(line, "dim") for words in _not_compared(report) for line in _folded(words, width, rest="  ")]
    foot += [Text(line, "bold") for line in _folded(_counted(report), width)]
    room = 10**6 if verbose else _MOST_LINES - len(head) - len(foot)
    for subject, lines in _shortened(blocks, room, width):
        say(Text(f"\n{subject}"))
        for line in lines:
            say(line)
    say(Text(""))
    for line in foot:
        say(line)


def _blocks(report: DifferenceReport, width: int, *, verbose: bool) -> Iterator[_Block]:
    for gravity, group in groupby(report.families, key=lambda family: family.gravity):
        families = [family for family in group if verbose or family.decides]
        if families:
            yield gravity, [((), lines) for lines in _family_blocks(families, width, verbose=verbose)]
    rows = [row for row in report.verdicts if row.decides or verbose]
    yield from _row_blocks(rows, width, verbose=verbose)


def _unlike(report: DifferenceReport) -> frozenset[str]:
    """Return the exchanges in which A and B were asked differently."""
    return frozenset(
        name for family in report.families if family.kind == "request" for name in family.exchanges
    )


def _not_compared_count(report: DifferenceReport) -> int:
    return len(report.only_one) + len(report.only_other) + len(_unlike(report))


def _not_compared(report: DifferenceReport) -> Iterator[str]:
    """Yield lines about requests that only one side received, and about requests that differ between the
    sides.
    """
    for label, only in zip(LABELS, (report.only_one, report.only_other), strict=True):
        if only:
            yield (
                f"not compared, because only {label} was asked: "
                f"{counted(len(only), 'exchange')}, {_scenarios(only)}"
            )
    if asked := _unlike(report):
        which = f"{counted(len(asked), 'exchange')}, {_scenarios(sorted(asked))}"
        yield f"not compared, because A and B were asked differently: {which}"


def _counted(report: DifferenceReport) -> str:
    """Describe how many differences there are, and how many comparisons."""
    verdicts = sum(row.decides for row in report.verdicts)
    kinds = len(_lines(family for family in report.families if family.decides))
    differing = (
        f" ({counted(kinds, 'kind')} of difference, {counted(verdicts, 'requirement')})"
        if report.differ
        else ""
    )
    undecided = counted(sum(not row.decides for row in report.verdicts), "undecided verdict")
    remarks = counted(sum(not family.decides for family in report.families), "remark")
    values = f"the values of {report.repeated:,} answers compared"
    return (
        f"A and B: {report.outcome}{differing}; {report.requirements} requirements were decided by both, "
        f"{values}; -v also shows {undecided} and {remarks}"
    )
