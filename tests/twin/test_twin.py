"""Two deployments beside each other: the outcome by what each differs by from itself, and its forms."""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

from tokenwire.asking.scenario import Conversation
from tokenwire.dialects.logprobs import Logprob, Position
from tokenwire.judging.verdict import ExitStatus
from tokenwire.record import Place
from tokenwire.report.tally_file import kind_of_tally
from tokenwire.settings import Settings
from tokenwire.usage_error import UsageError
from tokenwire_twin.commands.twin import twin_plans
from tokenwire_twin.difference import Difference, Gravity
from tokenwire_twin.twin import (
    TwinReport,
    TwinSide,
    merged,
    tally_twins,
    twin_report,
    twins_as_json,
)
from tokenwire_twin.twin_asking import Tells, TwinEndpoint, best_pair
from tokenwire_twin.twin_forms import headline, print_twins, twin_page
from tokenwire_twin.twin_numbers import Doubt, Outcome, Text, common
from tokenwire_twin.twin_parts import ENDS, TEMPLATE, TOKENIZER, Part
from tokenwire_twin.twin_tally import merged_twins, write_twins

SIDES = (
    TwinSide("http://127.0.0.1:1", "<b>old</b>", "sglang-generate", keeps_seeds=True),
    TwinSide("http://127.0.0.1:2", "new", "sglang-generate", keeps_seeds=False),
)
TOKENS = 32
Numbers = Callable[[Random], float]


def nothing(_random: Random) -> float:
    return 0.0


def some(size: float) -> Numbers:
    return lambda random: random.gauss(0, size)


def scoring(seed: int, likeliest: int = 0) -> list[Position]:
    """Logprobs of one text; of the ids of each position, which is the likeliest."""
    random, positions = Random(seed), []
    for place in range(TOKENS):
        top = [Logprob(-2 - random.random() - number / 3, (number + likeliest) % 5) for number in range(5)]
        positions.append(Position(top[0]._replace(id=place), top))
    return positions


def moved(positions: list[Position], noise: Numbers, seed: int, step: float = 0.0) -> list[Position]:
    """The same with other numbers, perhaps in steps."""
    random, changed = Random(seed), []
    for position in positions:
        numbers = [entry.value + noise(random) for entry in position.top or ()]
        numbers = [round(number / step) * step if step else number for number in numbers]
        top = [
            entry._replace(value=number) for entry, number in zip(position.top or (), numbers, strict=True)
        ]
        changed.append(Position(position.sampled._replace(value=numbers[0]), top))
    return changed


ROUNDING, LASTING, UNASKED = "rounding", "lasting", "unasked"
"""What a difference is behind another prompt: another number, the same number, or not asked."""


def texts(
    count: int,
    apart: Numbers,
    *,
    by_itself: tuple[Numbers, Numbers],
    steps: tuple[float, float] = (0.0, 0.0),
    kind: str = ROUNDING,
) -> list[Text]:
    made = []
    for seed in range(count):

        def both(of_prompt: int, of_difference: int) -> tuple[list[Position], list[Position]]:
            plain = scoring(of_prompt)
            return moved(plain, nothing, 0, steps[0]), moved(plain, apart, of_difference, steps[1])

        scores = both(seed, seed)
        again = tuple(moved(side, noise, -seed) for side, noise in zip(scores, by_itself, strict=True))
        there = seed + 1000
        elsewhere = ((), ()) if kind == UNASKED else both(there, seed if kind == LASTING else there)
        made.append(Text(seed % 2, scores, again, elsewhere=elsewhere))
    return made


def compared(given: list[Text]) -> TwinReport:
    return twin_report(tally_twins(SIDES, ((), ()), given))


def report_of(*given, **rest) -> TwinReport:
    return compared(texts(*given, **rest))


QUIET = (nothing, nothing)


@pytest.mark.parametrize(
    ("apart", "by_itself", "step", "outcome"),
    [
        (1e-5, QUIET, 0.0, Outcome.NOISE),
        (0.01, QUIET, 0.0, Outcome.OTHER),
        (0.01, (some(0.01), nothing), 0.0, Outcome.NOISE),
        (0.01, (nothing, some(0.01)), 0.0, Outcome.NOISE),
        (0.1, (some(0.01), some(0.01)), 0.0, Outcome.OTHER),
        (0.01, QUIET, 0.0625, Outcome.NOISE),
        (0.5, QUIET, 0.0625, Outcome.OTHER),
    ],
)
def test_the_outcome_is_by_what_each_side_differs_by_from_itself(apart, by_itself, step, outcome) -> None:
    report = report_of(24, some(apart), by_itself=by_itself, steps=(0.0, step))
    assert report.outcome is outcome, report
    assert report.tokens == 24 * TOKENS


STEP = 0.0625


@pytest.mark.parametrize(
    ("apart", "steps", "kind", "outcome", "doubt"),
    [
        (0.05, (STEP, STEP), ROUNDING, Outcome.NOISE, Doubt.NONE),
        (0.05, (STEP, STEP), LASTING, Outcome.UNDECIDED, Doubt.KERNEL),
        (0.05, (0.0, STEP), LASTING, Outcome.NOISE, Doubt.NONE),
        (0.28, (STEP, STEP), ROUNDING, Outcome.NOISE, Doubt.NONE),
        (0.28, (STEP, STEP), LASTING, Outcome.OTHER, Doubt.NONE),
        (0.2, (0.0, STEP), LASTING, Outcome.OTHER, Doubt.NONE),
        (0.05, (STEP, STEP), UNASKED, Outcome.UNDECIDED, Doubt.UNMEASURED),
    ],
)
def test_a_difference_that_lasts_behind_another_prompt_is_not_rounding(
    apart, steps, kind, outcome, doubt
) -> None:
    """Unless one side alone rounds: then its weights may be rounded, too."""
    report = report_of(48, some(apart), by_itself=QUIET, steps=steps, kind=kind)
    assert (report.outcome, report.doubt) == (outcome, doubt), report
    assert (report.exit_status == ExitStatus.CONFORMS) is (outcome is Outcome.NOISE)


def test_a_small_difference_that_lasts_is_never_the_same_however_few_tokens_show_it() -> None:
    """The fewer the tokens, the wider the interval of the part that lasts."""
    for count in range(4, 48, 4):
        report = report_of(count, some(0.05), by_itself=QUIET, steps=(STEP, STEP), kind=LASTING)
        assert report.outcome is Outcome.UNDECIDED, (count, report)


def test_without_a_second_prompt_a_side_may_differ_as_much_as_from_itself() -> None:
    shaky = (some(0.02), some(0.02))
    near = report_of(24, some(0.02), by_itself=shaky, kind=UNASKED)
    far = report_of(24, some(0.06), by_itself=shaky, kind=UNASKED)
    assert (near.outcome, far.outcome) == (Outcome.NOISE, Outcome.UNDECIDED)


def test_repetition_that_shows_less_than_the_steps_of_the_numbers_shows_no_noise() -> None:
    report = report_of(24, some(0.02), by_itself=(nothing, some(1e-4)), steps=(0.0, 2.0**-4))
    assert report.noise[1].size == report.noise[1].step == pytest.approx(2.0**-4, rel=0.3)
    assert report.noise[0].step == 0
    assert report.outcome is Outcome.NOISE


def test_few_texts_decide_nothing() -> None:
    report = report_of(3, some(1.0), by_itself=QUIET)
    assert report.outcome is Outcome.UNDECIDED
    assert report.exit_status == ExitStatus.NOTHING_EVALUATED
    assert "--tokens" in headline(report)


def test_texts_that_differ_among_themselves_decide_nothing_until_there_are_many() -> None:
    far = texts(2, some(0.004), by_itself=QUIET)
    near = texts(10, nothing, by_itself=QUIET)
    report = compared(near[2:6] + far + near[6:])
    assert report.outcome is Outcome.UNDECIDED
    assert report.apart.low <= report.limit < report.apart.high


def test_an_outcome_is_told_within_the_tokens_that_show_it() -> None:
    report = report_of(48, some(0.5), by_itself=QUIET)
    assert report.told_within == 4 * TOKENS
    late = texts(24, nothing, by_itself=QUIET) + texts(72, some(0.5), by_itself=QUIET)[24:]
    assert 24 * TOKENS < compared(late).told_within < 48 * TOKENS


def test_a_divergence_is_that_of_the_distributions() -> None:
    """Of two coins, by ids that the first one sampled."""
    ours, theirs = 0.5, 0.25
    expected = ours * math.log(ours / theirs) + (1 - ours) * math.log((1 - ours) / (1 - theirs))
    random, sampled = Random(1), []
    for _ in range(100):
        heads = [random.random() < ours for _ in range(TOKENS)]
        sides = (
            tuple(Position(Logprob(math.log(share if head else 1 - share), int(head))) for head in heads)
            for share in (ours, theirs)
        )
        sampled.append(Text(0, tuple(sides)))
    report = compared(sampled)
    assert report.divergence.low < expected < report.divergence.high
    assert report.divergence.mean == pytest.approx(expected, rel=0.1)


def test_another_likeliest_id_is_a_near_tie_or_it_is_not() -> None:
    same = [Text(0, (scoring(seed), scoring(seed))) for seed in range(4)]
    swapped = [Text(0, (scoring(seed), scoring(seed, likeliest=1))) for seed in range(4)]
    assert compared(same).agreed == 4 * TOKENS
    report = compared(swapped)
    assert (report.agreed, report.near_ties) == (0, 0)
    tied = [
        replace(text, scores=tuple([_tied(position) for position in side] for side in text.scores))
        for text in swapped
    ]
    assert compared(tied).near_ties == 4 * TOKENS


def _tied(position: Position) -> Position:
    top = [entry._replace(value=-2.0 - number * 1e-5) for number, entry in enumerate(position.top or ())]
    return position._replace(top=top)


def test_texts_are_compared_as_far_as_their_ids_are_the_same() -> None:
    ours, theirs = scoring(1), scoring(1)
    theirs[7] = theirs[7]._replace(sampled=Logprob(-1.0, 99))
    assert list(map(len, common(ours, theirs))) == [7, 7]
    theirs[3] = theirs[3]._replace(sampled=None)
    assert list(map(len, common(ours, theirs))) == [3, 3]


@pytest.mark.parametrize("size", [0.0, 1e-5, 0.5])
def test_every_form_says_the_outcome(size: float) -> None:
    report = report_of(24, some(size), by_itself=QUIET)
    written = io.StringIO()
    print_twins(Console(file=written, width=200), report)
    lines = written.getvalue().splitlines()
    assert lines[-1] == headline(report)
    assert max(map(len, lines)) <= 80
    page = twin_page(report)
    assert headline(report) in page
    assert "<b>old" not in page
    assert "<script" not in page
    document = json.loads(json.dumps(twins_as_json(report)))
    assert document["outcome"] == report.outcome
    assert [*document][-1] == "footer"
    assert sum(document["histograms"][-1]) == report.tokens


def test_a_twin_in_which_all_differs_is_read_on_60_lines() -> None:
    report = report_of(24, some(0.5), by_itself=(some(0.01), some(0.01)), kind=LASTING)
    besides = [
        Difference(Gravity.FAILED, "field", f"/a/{number}", "only in A", "word " * 200, "x/y", "d")
        for number in range(20)
    ]
    parts = [Part(name, 9, 9, ("prompt ids", "text"), "word " * 200) for name in (TEMPLATE, TOKENIZER, ENDS)]
    written = io.StringIO()
    print_twins(Console(file=written, width=80), replace(report, besides=tuple(besides), parts=tuple(parts)))
    lines = written.getvalue().splitlines()
    assert len(lines) <= 60
    assert sum(line.startswith("besides") for line in lines) == 7


def test_without_logprobs_nothing_is_told() -> None:
    report = compared([])
    assert report.outcome is Outcome.UNDECIDED
    written = io.StringIO()
    print_twins(Console(file=written, width=80), report)
    assert "no logprobs of the same ids" in written.getvalue()
    assert "no logprobs" in twin_page(report)


def test_tallies_of_many_twins_are_that_of_one(tmp_path: Path) -> None:
    """Whatever was apart: here numbers, and what follows from none."""
    every = texts(12, some(0.02), by_itself=(some(0.01), nothing))
    parts = [tally_twins(SIDES, ((), ()), every[start : start + 4]) for start in (0, 4, 8)]
    besides = Difference(
        Gravity.FIELDS, "field", "/x", "", "only A has it", "twin/greedy-0", "x", one=Place("twin/greedy-0")
    )
    parts[1] = replace(parts[1], besides=(besides,), same_answers=3, compared_answers=4, seeds=(1, 2))
    files = [tmp_path / f"{number}.tally.gz" for number in range(3)]
    for part, file in zip(parts, files, strict=True):
        write_twins(part, file)
    of_all = twin_report(merged_twins(files))
    assert replace(of_all, besides=(), same_answers=0, compared_answers=0, seeds=(0, 0)) == compared(every)
    assert of_all.besides == (replace(besides, one=None),)
    assert (of_all.same_answers, of_all.compared_answers, of_all.seeds) == (3, 4, (1, 2))
    assert [kind_of_tally(file) for file in files] == ["twins"] * 3


def test_replicas_are_named_by_their_number() -> None:
    tally = tally_twins(SIDES, ((), ()), [])
    replica = replace(tally, sides=(replace(SIDES[0], url="http://127.0.0.1:3", keeps_seeds=False), SIDES[1]))
    first, second = merged([tally, replica, tally]).sides
    assert (first.url, first.keeps_seeds) == ("http://127.0.0.1:1 and 1 more", False)
    assert second == SIDES[1]


def test_tallies_of_several_models_are_refused(tmp_path: Path) -> None:
    twins = tally_twins(SIDES, ((), ()), [])
    for name, tally in (("a", twins), ("b", replace(twins, sides=SIDES[::-1]))):
        write_twins(tally, tmp_path / name)
    with pytest.raises(UsageError, match="cannot be merged: their models or endpoints differ"):
        merged_twins([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize(
    "break_off",
    [lambda lines: lines[:-1], lambda lines: [lines[0], b'{"apart": 1}'], lambda _: []],
)
def test_a_tally_that_is_cut_or_none_is_refused(
    tmp_path: Path, break_off: Callable[[list[bytes]], list[bytes]]
) -> None:
    file = tmp_path / "tally.gz"
    write_twins(tally_twins(SIDES, ((), ()), texts(2, nothing, by_itself=QUIET)), file)
    file.write_bytes(gzip.compress(b"\n".join(break_off(gzip.decompress(file.read_bytes()).splitlines()))))
    with pytest.raises(UsageError, match="write it again"):
        merged_twins([file])


def endpoint(name: str, *, chat: bool = False, **tells: bool) -> TwinEndpoint:
    """An endpoint that is asked nothing: what it tells is known."""
    talk = SimpleNamespace(chat=chat, dialect=SimpleNamespace(name=name, takes_ids=not chat))
    return TwinEndpoint(cast(Conversation, talk), 0, Tells(**tells))


COUNTS = {"answers": True}
TELLS = {"ids": True, "logprobs": True, **COUNTS}


@pytest.mark.parametrize(
    ("first", "other", "best"),
    [
        # The endpoint that both have is not the one that tells most.
        (
            [endpoint("responses", chat=True, **COUNTS), endpoint("completions", **TELLS)],
            [endpoint("responses", chat=True, **COUNTS), endpoint("completions", **TELLS)],
            ("completions", "completions"),
        ),
        # Two families have one in common, and better ones under other names.
        (
            [endpoint("openai", chat=True, **TELLS), endpoint("one", scores=True, **TELLS)],
            [endpoint("openai", chat=True, **TELLS), endpoint("two", scores=True, **TELLS)],
            ("one", "two"),
        ),
        # A side that tells more than the other is of no use, and the same name breaks ties.
        (
            [endpoint("one", scores=True, **TELLS), endpoint("both", **TELLS)],
            [endpoint("both", **TELLS), endpoint("two", **TELLS)],
            ("both", "both"),
        ),
        # Messages and ids are different prompts, whatever they tell.
        (
            [endpoint("chat", chat=True, scores=True, **TELLS), endpoint("plain", **COUNTS)],
            [endpoint("other", scores=True, **TELLS)],
            ("plain", "other"),
        ),
    ],
)
def test_the_endpoints_that_tell_most_of_the_same_requests_are_asked(first, other, best) -> None:
    pair = best_pair([first, other])
    assert pair is not None
    assert tuple(side.talk.dialect.name for side in pair) == best


def test_each_side_has_its_own_name_of_the_model() -> None:
    urls = "http://127.0.0.1:1", "http://127.0.0.1:2"
    settings = Settings(target=urls[0], model="both")
    plans = twin_plans(settings, urls, lambda _: False, models=("", "theirs"))
    assert [plan.settings.model for plan in plans] == ["both", "theirs"]
