"""Small-scope proof of the acceptor: it accepts every delivery that a streamer can produce, and refuses every
impossible delivery that differs from a possible one by one edit.

A few tokens are enough to show most bugs of delivery. This proof enumerates all deliveries of short records:
all ways in which an engine takes steps, a streamer decides to emit, a queue joins unread outputs, and a
detokenizer holds text back. The model below follows the specification alone. It depends neither on the
acceptor nor on the reference engine.

    python -m proofs.small_scope            all records of up to 6 tokens
    python -m proofs.small_scope --tokens 4
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from tokenwire.checks.acceptor import Acceptance, Delivered, Record, Rules, accept
from tokenwire.record import Delivery

LONGEST_STEP = 3
INTERVALS = (1, 2, 3, 4)
MODES = (Delivery.INCREMENTAL, Delivery.CUMULATIVE)
LATE = "late_key"
MIRROR = "mirror_token_id"

Cut = tuple[tuple[int, int], ...]
"""A delivery as positions: for each emission, the number of ids and of characters that are
delivered so far.
"""
Edit = tuple[str, tuple[Delivered, ...]]
"""A description of an edit, and the emissions that replace a window."""


@dataclass(frozen=True)
class Story:
    """A record to deliver, with its difficulties."""

    tokens: int
    broken: int | None = None
    """This token contains the first bytes of a character, and the next token contains the rest."""
    held: int | None = None
    """After this token, the text ends with the beginning of a stop string, so the streamer waits for the next
    step.
    """
    late: int | None = None
    """From this token on, the sampler attaches a second key. Before this token, the key is absent."""

    @property
    def pieces(self) -> tuple[str, ...]:
        """The text that each token completes."""
        pieces = [chr(0x4E00 + token) for token in range(self.tokens)]
        if self.broken is not None:
            pieces[self.broken] = ""
            if self.broken + 1 == self.tokens:
                pieces[self.broken] = "\ufffd"
            else:
                pieces[self.broken + 1] = "é" + pieces[self.broken + 1]
        return tuple(pieces)

    def text_after(self, tokens: int) -> int:
        """Return the number of characters that are complete after `tokens` tokens."""
        complete = len("".join(self.pieces[:tokens]))
        dangling = self.broken is not None and self.broken + 1 == self.tokens == tokens
        return complete - 1 if dangling else complete

    @property
    def record(self) -> Record:
        """The whole answer."""
        ids = tuple(range(100, 100 + self.tokens))
        series: dict[str, tuple[Any, ...]] = {MIRROR: ids}
        if self.late is not None:
            series[LATE] = tuple(None if n < self.late else f"v{n}" for n in range(self.tokens))
        return Record(
            ids,
            "".join(self.pieces),
            series,
            "length",
            text_after=tuple(self.text_after(n + 1) for n in range(self.tokens)),
        )


def stories(tokens: int) -> Iterator[Story]:
    """Yield all records of `tokens` tokens with at most two difficulties of different kinds."""
    nowhere_or_anywhere = (None, *range(tokens))
    for broken in nowhere_or_anywhere:
        for held in nowhere_or_anywhere:
            for late in nowhere_or_anywhere:
                if sum(trouble is not None for trouble in (broken, held, late)) <= 2:
                    yield Story(tokens, broken, held, late)


def emitted(story: Story, interval: int) -> set[tuple[int, ...]]:
    """Return the numbers of tokens at which the streamer emits, for each way in which the engine may take
    steps.
    """
    found: set[tuple[int, ...]] = set()

    def walk(made: int, sent: int, rows: tuple[int, ...]) -> None:
        for step in range(1, LONGEST_STEP + 1):
            now = made + step
            if now > story.tokens:
                break
            if now == story.tokens:
                found.add((*rows, now))
                continue
            waits = story.held is not None and story.held == now - 1
            due = sent == 0 or now - sent >= interval
            if due and not waits:
                walk(now, now, (*rows, now))
            else:
                walk(now, sent, rows)

    walk(0, 0, ())
    return found


def joined(rows: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Return the emissions of a consumer that may read at any time. Rows that wait together become
    one.
    """
    taken: set[tuple[int, ...]] = set()
    for ends in rows:
        inner = ends[:-1]
        for count in range(len(inner) + 1):
            taken.update((*kept, ends[-1]) for kept in combinations(inner, count))
    return taken


def with_text(story: Story, ends: tuple[int, ...]) -> Iterator[Cut]:
    """Yield all ways in which the text may lag behind the ids. The last emission completes the text."""

    def walk(position: int, shown: int, cut: Cut) -> Iterator[Cut]:
        if position == len(ends) - 1:
            yield (*cut, (ends[-1], len(story.record.text or "")))
            return
        for text in range(shown, story.text_after(ends[position]) + 1):
            yield from walk(position + 1, text, (*cut, (ends[position], text)))

    yield from walk(0, 0, ())


def produced(story: Story, interval: int) -> set[Cut]:
    """Return all possible deliveries of a story."""
    return {cut for ends in joined(emitted(story, interval)) for cut in with_text(story, ends)}


def written(story: Story, cut: Cut, mode: Delivery) -> tuple[Delivered, ...]:
    """Return a delivery as it is on the wire."""
    record, emissions = story.record, []
    ids, text = record.output_ids or (), record.text or ""
    before = (0, 0)
    for position, (end, shown) in enumerate(cut):
        start, plainly = before if mode is Delivery.INCREMENTAL else (0, 0)
        series = {MIRROR: list(record.series[MIRROR][start:end])}
        if story.late is not None and end > story.late:
            series[LATE] = list(record.series[LATE][start:end])
        emissions.append(
            Delivered(
                list(ids[start:end]),
                text[plainly:shown],
                series,
                end,
                record.finish if position == len(cut) - 1 else None,
            )
        )
        before = (end, shown)
    return tuple(emissions)


def _lists(values: list[Any], strange: Any, following: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield a list with one edit."""
    for index in range(len(values)):
        yield f"without entry {index}", values[:index] + values[index + 1 :]
        yield f"with entry {index} twice", values[: index + 1] + values[index:]
        yield f"with another entry {index}", [*values[:index], strange, *values[index + 1 :]]
        if index + 1 < len(values):
            yield (
                f"with entries {index} and {index + 1} swapped",
                [
                    *values[:index],
                    values[index + 1],
                    values[index],
                    *values[index + 2 :],
                ],
            )
    yield "with one entry more", [*values, following]


def _within(emission: Delivered) -> Iterator[tuple[str, Delivered]]:
    """Yield one emission with one edit."""
    for words, ids in _lists(list(emission.output_ids or ()), 7, 8):
        yield f"output_ids {words}", replace(emission, output_ids=ids)
    for words, text in _lists(list(emission.text or ""), "x", "y"):
        yield f"text {words}", replace(emission, text="".join(text))
    for name, entries in emission.series.items():
        for words, values in _lists(list(entries), "strange", None):
            yield f"{name} {words}", replace(emission, series={**emission.series, name: values})
        yield (
            f"without {name}",
            replace(emission, series={n: v for n, v in emission.series.items() if n != name}),
        )
    for off in (-1, 1):
        yield (
            f"counter {off:+d}",
            replace(emission, completion_tokens=(emission.completion_tokens or 0) + off),
        )
    yield "finish moved or lost", replace(emission, finish=None if emission.finish else "length")
    if emission.finish:
        yield "another finish", replace(emission, finish="stop")


def _between(
    earlier: Delivered, later: Delivered, mode: Delivery
) -> Iterator[tuple[str, Delivered, Delivered]]:
    """Yield two adjacent emissions with one edit that concerns both, in incremental delivery."""
    if mode is not Delivery.INCREMENTAL:
        return
    if later.text:
        yield (
            "text a character early",
            replace(earlier, text=(earlier.text or "") + later.text[0]),
            replace(later, text=later.text[1:]),
        )
    if earlier.text:
        yield (
            "text a character late",
            replace(earlier, text=earlier.text[:-1]),
            replace(later, text=earlier.text[-1] + (later.text or "")),
        )
    first, second = list(earlier.output_ids or ()), list(later.output_ids or ())
    if second:
        yield (
            "id early",
            replace(earlier, output_ids=[*first, second[0]]),
            replace(later, output_ids=second[1:]),
        )
    if first:
        yield (
            "id late",
            replace(earlier, output_ids=first[:-1]),
            replace(later, output_ids=[first[-1], *second]),
        )
    for name in earlier.series.keys() & later.series.keys():
        left, right = list(earlier.series[name]), list(later.series[name])
        if right:
            yield (
                f"{name} early",
                replace(earlier, series={**earlier.series, name: [*left, right[0]]}),
                replace(later, series={**later.series, name: right[1:]}),
            )


def _in_the_other_mode(emission: Delivered, other: Delivered) -> Iterator[tuple[str, Delivered]]:
    """Yield an emission with one field in the other delivery mode."""
    yield "output_ids in the other mode", replace(emission, output_ids=other.output_ids)
    yield "text in the other mode", replace(emission, text=other.text)
    for name in emission.series:
        yield (
            f"{name} in the other mode",
            replace(emission, series={**emission.series, name: other.series[name]}),
        )


def edits(window: tuple[Delivered, ...], in_other_mode: Delivered, mode: Delivery) -> Iterator[Edit]:
    """Yield all single edits at the first emission of a window, or between this emission and the next one.

    window: an emission and the next one, or only the last emission.
    """
    emission, rest = window[0], window[1:]
    yield "left out", rest
    yield "twice", (emission, *window)
    for words, edited in (*_within(emission), *_in_the_other_mode(emission, in_other_mode)):
        yield words, (edited, *rest)
    for other in rest:
        yield "swapped with the next", (other, emission)
        for words, first, second in _between(emission, other, mode):
            yield words, (first, second)


def plain(emissions: tuple[Delivered, ...], mode: Delivery) -> tuple[Any, ...]:
    """Return the content of a delivery, for a search among the possible deliveries.

    Emissions without new content are left out, because the specification allows them.
    """
    plainly: list[Any] = []
    before: Any = None
    for emission in emissions:
        now = (
            tuple(emission.output_ids or ()),
            emission.text,
            tuple(sorted((name, tuple(entries)) for name, entries in emission.series.items())),
            emission.completion_tokens,
            emission.finish,
        )
        if mode is Delivery.INCREMENTAL:
            idle = not now[0] and not now[1] and not any(entries for _, entries in now[2])
            nothing_new = idle and before is not None and now[3] == before[3] and emission.finish is None
        else:
            nothing_new = now == before and emission.finish is None
        if not nothing_new:
            plainly.append(now)
            before = now
    return tuple(plainly)


def _tells_all(record: Record, emissions: tuple[Delivered, ...]) -> bool:
    """Return True if every series occurs in some emission. A series without an emission may not have been
    requested.
    """
    return all(any(name in emission.series for emission in emissions) for name in record.series)


@dataclass
class Proof:
    """Counts of the proof, and the wrong decisions of the acceptor."""

    deliveries: int = 0
    neighbours: int = 0
    legal_neighbours: int = 0
    """The number of edits that produce another possible delivery."""
    refused: list[str] = field(default_factory=list)
    """Possible deliveries that were refused."""
    accepted: list[str] = field(default_factory=list)
    """Impossible deliveries that were accepted."""

    @property
    def holds(self) -> bool:
        return self.deliveries > 0 and self.neighbours > 0 and not self.refused and not self.accepted


def prove_one(
    proof: Proof, story: Story, interval: int, mode: Delivery, *, each_by_itself: bool = False
) -> None:
    """Try all deliveries of one story, and all their single edits.

    The emissions before a window only show the acceptor how much of the record is delivered. So if an edit is
    refused within its window, it is refused in all deliveries that contain this window, and it is not tried
    again in these. With `each_by_itself`, it is tried in each delivery.
    """
    record, rules = story.record, Rules(mode, interval)
    other_mode = Delivery.CUMULATIVE if mode is Delivery.INCREMENTAL else Delivery.INCREMENTAL
    cuts = produced(story, interval)
    known = {plain(written(story, cut, mode), mode) for cut in cuts}
    tried: set[tuple[Any, ...]] = set()
    undecided: dict[tuple[Any, ...], list[Edit]] = {}
    decided: Counter[tuple[Any, ...]] = Counter()
    for cut in cuts:
        proof.deliveries += 1
        emissions, mixed = written(story, cut, mode), written(story, cut, other_mode)
        verdict: Acceptance = accept(record, emissions, rules)
        if not verdict.legal:
            proof.refused.append(f"{story}, interval {interval}, {mode}, {cut}: {verdict}")
        for index in range(len(cut)):
            window = (
                (cut, index)
                if each_by_itself
                else (cut[index - 1 : index] if index else (), cut[index : index + 2])
            )
            before, after = emissions[:index], emissions[index + 2 :]
            if window not in undecided:
                undecided[window] = list(edits(emissions[index : index + 2], mixed[index], mode))
            proof.neighbours += decided[window]
            left = []
            for words, instead in undecided[window]:
                edited = (*before, *instead, *after)
                plainly = plain(edited, mode)
                left.append((words, instead))
                if plainly in known:
                    proof.legal_neighbours += 1
                    continue
                if plainly in tried or not _tells_all(record, edited):
                    continue
                tried.add(plainly)
                proof.neighbours += 1
                verdict = accept(record, edited, rules)
                if verdict.legal:
                    proof.accepted.append(
                        f"{story}, interval {interval}, {mode}, {cut}: emission {index}: {words}"
                    )
                elif verdict.index is not None and verdict.index < index + len(instead):
                    left.pop()
                    decided[window] += 1
            undecided[window] = left


def prove(longest: int) -> Proof:
    """Try all records of up to `longest` tokens."""
    proof = Proof()
    for tokens in range(1, longest + 1):
        for story in stories(tokens):
            for interval in INTERVALS:
                for mode in MODES:
                    prove_one(proof, story, interval, mode)
    return proof


def main() -> int:
    """Print the number of tried deliveries. Return 1 if the proof does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=6, metavar="N", help="the longest record (default 6)")
    proof = prove(parser.parse_args().tokens)
    for words in [*proof.refused[:5], *proof.accepted[:5]]:
        print(words)
    print(
        f"{proof.deliveries} deliveries, {len(proof.refused)} of them refused; "
        f"{proof.neighbours} impossible edits, {len(proof.accepted)} of them accepted; "
        f"{proof.legal_neighbours} edits that are possible deliveries"
    )
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
