"""The parts of a deployment around its weights: which answers show that two sides differ in one."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console
from stream_builder import LENGTH, STOP, Reply, build

from tokenwire.judging.verdict import ExitStatus
from tokenwire.record import Delivery, Stream
from tokenwire_twin.difference import Difference, Gravity
from tokenwire_twin.twin import TwinReport, TwinSide, TwinTally, twin_report
from tokenwire_twin.twin_forms import headline, print_twins
from tokenwire_twin.twin_numbers import Counted, Outcome
from tokenwire_twin.twin_parts import Part, ends_of, merged_parts, template_of, tokenizer_of

SIDES = (TwinSide("http://127.0.0.1:1", "old", "x"), TwinSide("http://127.0.0.1:2", "new", "x"))


SAME_WORDS = Part("tokenizer", 6, 0)


def told(label: str = "messages-0", dialect: str = "sglang-generate", **fields: Any) -> Stream:
    reply = Reply(**({"ids": (5, 6), "text": "ab"} | fields))
    return build(Delivery.WHOLE, choices=(reply,), dialect=dialect, name=f"{dialect}/twin/{label}")


def labelled(**fields: Any) -> Mapping[str, Stream]:
    label = fields.pop("label", "messages-0")
    return {label: told(label, **fields)}


@pytest.mark.parametrize(
    ("first", "other", "differing", "by"),
    [
        ({"prompt_ids": (1, 2)}, {"prompt_ids": (1, 2)}, 0, ("prompt ids",)),
        ({"prompt_ids": (1, 2)}, {"prompt_ids": (1, 3)}, 1, ("prompt ids",)),
        ({"prompt_ids": (1, 2)}, {"prompt_ids": (1, 2, 3)}, 1, ("prompt ids",)),
        (
            {"counters": {"prompt_tokens": 25}},
            {"counters": {"prompt_tokens": 25}},
            0,
            ("counts of prompt tokens",),
        ),
        (
            {"counters": {"prompt_tokens": 25}},
            {"counters": {"prompt_tokens": 26}},
            1,
            ("counts of prompt tokens",),
        ),
        # A side that tells its ids beside one that counts: the counts decide.
        ({"prompt_ids": (1, 2, 3)}, {}, 0, ("counts of prompt tokens",)),
    ],
)
def test_a_template_shows_in_the_prompt_of_messages(first, other, differing, by) -> None:
    part = template_of(labelled(**first), labelled(**other), "no endpoint takes messages", SAME_WORDS)
    assert (part.compared, part.differing, part.by) == (1, differing, by)
    assert bool(part.example) is bool(differing)


def test_another_tokenizer_is_not_another_template() -> None:
    ours, theirs = (labelled(prompt_ids=ids) for ids in ((1, 2), (1, 3)))
    other_words = Part("tokenizer", 6, 1)
    part = template_of(ours, theirs, "", other_words)
    assert (part.compared, part.differs) == (0, False)
    assert "tokenizers differ" in part.missing
    assert template_of(ours, ours, "", other_words).compared == 1


def test_a_part_that_nothing_shows_says_why() -> None:
    part = template_of({}, {}, "no endpoint takes messages", SAME_WORDS)
    assert (part.compared, part.differs, part.missing) == (0, False, "no endpoint takes messages")


@pytest.mark.parametrize(
    ("finishes", "compared", "differing"),
    [((STOP, STOP), 1, 0), ((STOP, LENGTH), 1, 1), ((LENGTH, STOP), 1, 1), ((LENGTH, LENGTH), 0, 0)],
)
def test_an_id_that_is_forced_ends_a_text_or_does_not(finishes, compared, differing) -> None:
    ours, theirs = (labelled(label="end-9", finish=finish) for finish in finishes)
    part = ends_of(ours, theirs, (), "no answer came to an end")
    assert (part.compared, part.differing) == (compared, differing)
    assert ("token id 9" in part.example) is bool(differing)


@pytest.mark.parametrize(
    ("first", "other", "compared", "differing"),
    [
        (((5, 6, 2), STOP), ((5, 6, 2), STOP), 1, 0),
        (((5, 6, 2), STOP), ((5, 6, 2, 8), LENGTH), 1, 1),
        (((5, 6, 2), STOP), ((5, 7, 2, 8), LENGTH), 0, 0),
        (((5, 6, 2), LENGTH), ((5, 6, 2), LENGTH), 0, 0),
        (((5, 6, 2), STOP), ((5, 6, 2), LENGTH), 1, 1),
    ],
)
def test_a_text_ends_at_one_side_where_it_goes_on_at_the_other(first, other, compared, differing) -> None:
    """Texts that went apart before show nothing: other numbers do that, too."""
    pair = tuple(told(ids=ids, text="x" * len(ids), finish=finish) for ids, finish in (first, other))
    part = ends_of({}, {}, [pair], "no answer came to an end")
    assert (part.compared, part.differing) == (compared, differing)


@pytest.mark.parametrize(
    ("first", "other", "dialects", "compared", "differing"),
    [
        ("ab", "ab", ("x", "x"), 1, 0),
        ("ab", "ac", ("x", "x"), 1, 1),
        ("a�", "a", ("x", "x"), 1, 1),
        ("a�", "a", ("x", "y"), 0, 0),
    ],
)
def test_a_tokenizer_shows_in_the_texts_of_the_same_ids(first, other, dialects, compared, differing) -> None:
    """Families show pieces of characters in different ways: there they show nothing."""
    pair = tuple(
        told(text=text, dialect=dialect) for text, dialect in zip((first, other), dialects, strict=True)
    )
    part = tokenizer_of({}, {}, [pair], "")
    assert (part.compared, part.differing) == (compared, differing)
    other_ids = tokenizer_of({}, {}, [(pair[0], told(ids=(5, 7), text="zz"))], "")
    assert other_ids.compared == 0


def test_a_tokenizer_shows_in_the_ids_of_words() -> None:
    ours, theirs = (labelled(label="words-1", prompt_ids=ids) for ids in ((1, 2), (1, 3)))
    assert tokenizer_of(ours, theirs, (), "").differs
    assert not tokenizer_of(ours, ours, (), "").differs


def report(*parts: Part, apart: float = 0.0, besides: int = 0) -> TwinReport:
    numbers = (apart,) * 32
    text = Counted(numbers, numbers, ((0.0,), (0.0,)), numbers, ((), ()), (0.0,) * 32)
    fields = tuple(
        Difference(Gravity.FIELDS, "field", f"/x{n}", "only in A", "only in A", "e", "x")
        for n in range(besides)
    )
    return twin_report(TwinTally(SIDES, (text,) * 8, 4, 4, (1, 1), fields, parts))


TEMPLATE = Part("template", 4, 0, ("prompt ids",))
ENDS = Part("ends", 2, 1, ("forced ids",), "only A ends at token id 2")
UNSEEN = Part("tokenizer", missing="no endpoint returns ids and texts")


def test_an_outcome_names_all_that_was_compared() -> None:
    seen = report(TEMPLATE, UNSEEN)
    assert seen.outcome is Outcome.SAME
    assert headline(seen) == "the same (weights, template): 256 tokens to the last digit"


@pytest.mark.parametrize(
    ("apart", "outcome", "words"),
    [
        (0.0, Outcome.AROUND, "other ends; the weights are the same: 256 tokens"),
        (0.5, Outcome.OTHER, "another model, other ends: "),
    ],
)
def test_what_is_around_the_weights_decides_too(apart: float, outcome: Outcome, words: str) -> None:
    seen = report(TEMPLATE, ENDS, apart=apart)
    assert (seen.outcome, seen.exit_status) == (outcome, ExitStatus.VIOLATION)
    assert headline(seen).startswith(words)
    written = io.StringIO()
    print_twins(Console(file=written, width=80), seen)
    assert "only A ends at token id 2" in written.getvalue()


def test_many_fields_are_counted_and_do_not_count_as_answers() -> None:
    written = io.StringIO()
    print_twins(Console(file=written, width=80), report(TEMPLATE, besides=130))
    lines = written.getvalue().splitlines()
    assert any("4 of 4 (100.0 %) have the same content" in line for line in lines)
    besides = [line for line in lines if line.startswith("besides")]
    assert len(besides) < 10
    assert "124 more" in besides[-1]
    assert lines[-1].startswith("the same (")


def test_parts_of_many_twins_are_those_of_one() -> None:
    of_all = merged_parts([(TEMPLATE, UNSEEN), (Part("template", 4, 1, ("prompt ids",), "x"), UNSEEN)])
    assert of_all == (Part("template", 8, 1, ("prompt ids",), "x"), UNSEEN)
