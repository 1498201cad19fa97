"""Formats the result of a twin comparison, for the terminal or as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill

from rich.console import Console
from rich.text import Text

from tokenwire.report.templates import template
from tokenwire.report.wording import cut
from tokenwire_twin.difference_report import LABELS
from tokenwire_twin.twin import TwinReport, TwinSide
from tokenwire_twin.twin_numbers import Doubt, Interval, Noise, Outcome
from tokenwire_twin.twin_parts import ENDS, TEMPLATE, TOKENIZER, Part

_STYLES = {
    Outcome.OTHER: "bold red",
    Outcome.AROUND: "bold red",
    Outcome.UNDECIDED: "bold yellow",
}
_BARS = " ▁▂▃▄▅▆▇█"
_ROWS = ("A by itself", "B by itself", "A against B")
_LEFT = 15
_PER_BIN = 3
_LINE = 80
_OTHERS = {TEMPLATE: "another template", ENDS: "other ends", TOKENIZER: "another tokenizer"}
_MOST_BESIDES = 6
"""The most differences of fields that are listed. `tokenwire compare` lists all."""
_SCALE = ("0", "1e-6", "1e-5", "1e-4", "1e-3", "0.01", "0.1", "1")
"""Labels for the bins of a plot; every second bin has one."""


def _nats(number: float) -> str:
    """Return a number of nats as text, with few digits."""
    return "0" if not number else f"{number:.3g}"


def _between(interval: Interval) -> str:
    return f"{_nats(interval.mean)} [{_nats(interval.low)}, {_nats(interval.high)}]"


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({100 * part / whole:.1f} %)" if whole else "none"


def _noise(noise: Noise) -> str:
    seen = f"{_nats(noise.repeated)} over {noise.tokens:,} tokens" if noise.tokens else "was not measured"
    if noise.size == noise.step > 0:
        return f"{seen}; its logprobs are multiples of {_nats(noise.step)}, which is used as its noise"
    return seen


def _seeds(report: TwinReport) -> str:
    same, compared = report.seeds
    keep = [label for label, side in zip(LABELS, report.sides, strict=True) if side.keeps_seeds]
    if all(side.keeps_seeds is None for side in report.sides):
        return "cannot be sent"
    kept = {0: "no side keeps them", 1: f"only {''.join(keep)} keeps them"}.get(len(keep), "both keep them")
    return f"{kept}; {same} of {compared} samples have the same ids"


def _part(part: Part) -> str:
    """Describe the result for one part, or the reason why the part was not compared."""
    if part.missing:
        return f"not compared: {part.missing}"
    seen = f"{part.compared - part.differing:,} of {part.compared:,} are the same ({', '.join(part.by)})"
    return f"{seen}; {part.example}" if part.example else seen


def facts(report: TwinReport) -> Iterator[tuple[str, str]]:
    """Yield the lines of the result, each with a name and a text."""
    yield "apart", f"{_between(report.apart)} nats on average; noise explains up to {_nats(report.limit)}"
    if report.lasting is not None and report.share is not None and report.apart.mean:
        share = [round(100 * number) for number in (report.share.mean, report.share.low, report.share.high)]
        yield (
            "lasting",
            f"{_between(report.lasting)} nats, the same behind another prompt: "
            f"{share[0]} % [{share[1]}, {share[2]}] of the distance",
        )
    for label, noise in zip(LABELS, report.noise, strict=True):
        yield f"{label} by itself", _noise(noise)
    yield "divergence", f"{_between(report.divergence)} nats a token"
    others = report.tokens - report.agreed
    ties = f"; near ties explain {report.near_ties:,} of the others" if others else ""
    yield "likeliest id", f"the same for {_share(report.agreed, report.tokens)}{ties}"
    for part in report.parts:
        yield part.name, _part(part)
    yield "seeds", _seeds(report)
    yield "answers", f"{_share(report.same_answers, report.compared_answers)} have the same content and end"
    for difference in report.besides[:_MOST_BESIDES]:
        named = " ".join(filter(None, (difference.kind, difference.subject)))
        yield "besides", f"{named}: {difference.message} (in {difference.exchange})"
    if more := len(report.besides[_MOST_BESIDES:]):
        yield "besides", f"{more} more; `tokenwire compare` shows all"


def _scope(report: TwinReport) -> str:
    """List the parts that were compared and are equal."""
    around = [part.name for part in report.parts if part.compared and not part.differs]
    return ", ".join(["weights", *around])


def headline(report: TwinReport) -> str:
    """Return the result as a sentence."""
    others = ", ".join(_OTHERS[part.name] for part in report.parts if part.differs)
    if report.outcome is Outcome.AROUND:
        return f"{others}; the weights are {_of_weights(report)}"
    if report.outcome is Outcome.OTHER and others:
        return f"another model, {others}: {_within(report)}"
    return _of_weights(report)


def _within(report: TwinReport) -> str:
    return f"{report.told_within:,} of {report.tokens:,} tokens were enough to decide"


def _of_weights(report: TwinReport) -> str:
    """Return the result for the weights, and the other parts that are equal."""
    around = "" if report.outcome is Outcome.AROUND else f" ({_scope(report)})"
    seen = f"{report.tokens:,} tokens"
    match report.weights, report.doubt:
        case _ if not report.tokens:
            return "undecided: the sides have no logprobs of the same ids"
        case Outcome.UNDECIDED, Doubt.KERNEL:
            return f"undecided after {seen}: another kernel, or other weights"
        case Outcome.UNDECIDED, Doubt.UNMEASURED:
            return f"undecided after {seen}: this endpoint shows no measure of rounding"
        case Outcome.UNDECIDED, _:
            return f"undecided after {seen}: ask for more, --tokens {4 * report.tokens}"
        case Outcome.SAME, _:
            return f"the same{around}: {seen} to the last digit"
        case Outcome.OTHER, _:
            return f"another model: {_within(report)}"
    return f"the same up to noise{around}: {seen}"


def describe(side: TwinSide) -> str:
    """Describe a side in one line."""
    return f"{side.url}  {side.model}, asked as {side.dialect}"


def _line(name: str, words: str) -> str:
    """Return one line of the result for the terminal, wrapped between words."""
    return fill(f"{name:{_LEFT}}{words}", _LINE, subsequent_indent=" " * _LEFT, break_long_words=False)


def _drawn(counts: Sequence[int]) -> str:
    """Return a histogram in one line. Even a single token is visible."""
    most = max(counts, default=0)
    heights = [-(-count * (len(_BARS) - 1) // most) if most else 0 for count in counts]
    return "".join(_BARS[height] * (_PER_BIN - 1) + " " for height in heights)


def _mark(report: TwinReport) -> int:
    """Return the index of the bin that begins nearest to the limit."""
    return sum(report.limit * 10**0.25 > edge for edge in report.edges)


def plot_lines(report: TwinReport) -> Iterator[str]:
    """Yield the lines of a plot.

    It shows the differences between the sides, and the differences of each side from its own repetition.
    """
    for name, counts in zip(_ROWS, report.histograms, strict=True):
        yield f"{name:{_LEFT}}{_drawn(counts)}".rstrip()
    yield "as far as noise brings them |".rjust(_LEFT + _PER_BIN * _mark(report))
    scale = "".join(f"{word:{2 * _PER_BIN}}" for word in _SCALE)
    yield f"{'nats apart':{_LEFT}}{scale}".rstrip()


def print_twins(console: Console, report: TwinReport) -> None:
    """Print the result. Lines have at most 80 columns, except those with URLs."""
    for label, side in zip(LABELS, report.sides, strict=True):
        console.print(Text(f"{label}  {describe(side)}"), soft_wrap=True)
    console.print()
    if report.tokens:
        for line in plot_lines(report):
            console.print(Text(line), soft_wrap=True)
        console.print()
    for name, words in facts(report):
        console.print(Text(_line(name, cut(words, 2 * _LINE))), soft_wrap=True)
    console.print()
    console.print(Text(headline(report), _STYLES.get(report.outcome, "bold green")), soft_wrap=True)


def twin_page(report: TwinReport) -> str:
    """Return the result as an HTML file, without scripts or network access."""
    return template("tokenwire_twin", "twin.html.jinja").render(
        report=report,
        headline=headline(report),
        sides=[*zip(LABELS, map(describe, report.sides), strict=True)],
        facts=list(facts(report)),
        rows=[*zip(_ROWS, report.histograms, strict=True)],
        edges=[*map(_nats, report.edges)],
        limit=_mark(report),
        scale=_SCALE,
    )
