"""Mutants of code: which are made, which are drawn, and which tests try them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import yaml
from proofs import mutants
from proofs.code_mutation.covering import Covering
from proofs.code_mutation.forking import in_fork
from proofs.code_mutation.making import Mutant, mutants_of, sampled
from proofs.code_mutation.trial import Outcome
from proofs.mutants import ANY, EQUIVALENT, ROOT, Asked


def changes(source: str) -> set[str]:
    return {mutant.change for mutant in mutants_of("a.py", source.encode())}


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("a < b", {"a < b -> (a <= b)"}),
        ("a and b", {"a and b -> (a or b)", "a and b -> (a)", "a and b -> (b)"}),
        ("not a", {"not a -> (a)"}),
        ("a - b", {"a - b -> (a + b)"}),
        ("a[x:]", {"x: -> :"}),
        ("any(a)", {"any(a) -> (all(a))"}),
        ("x = 7", {"7 -> (8)", "7 -> (6)"}),
        ("[a for a in b if c]", {"c -> (True)"}),
        ("if a:\n    return", {"a -> (True)", "a -> (False)"}),
        ("def f():\n    a()\n    return b", {"a() -> pass", "return b -> return None"}),
    ],
)
def test_each_has_one_small_fault(source: str, made: set[str]) -> None:
    assert changes(source) == made


@pytest.mark.parametrize(
    "source",
    [
        'raise ValueError(f"{1 + 1} of {2}")',
        'f(message="a" + b)',
        'if a > 1:\n    message = "b"',
        "logger.debug(1)",
        "x: Annotated[int, 5]",
        "assert a == 1",
        "def __repr__(self):\n    return 1 + 1",
        "if TYPE_CHECKING:\n    import a",
        '"""1 + 1"""',
        "zip(a, b, strict=True)",
    ],
)
def test_what_no_test_should_pin_is_left_alone(source: str) -> None:
    assert changes(source) == set()


def test_a_mutant_changes_its_place_and_nothing_else() -> None:
    source = 'x = "ä"\ny = (x\n     < 5)\n'.encode()
    first, *others = mutants_of("a.py", source)
    assert (first.line, first.statement, first.text) == (2, 2, "y = (x")
    assert first.applied(source).decode() == 'x = "ä"\ny = ((x <= 5))\n'
    assert [mutant.line for mutant in others] == [3, 3]


def test_a_change_of_other_lines_leaves_the_sample_as_it_is() -> None:
    lines = [f"x{number} = {number + 2}" for number in range(50)]
    before, after = ("\n".join(item).encode() for item in (lines, ["import a", *lines[:20], *lines[21:]]))
    drawn = [{mutant.text for mutant in sampled(mutants_of("a.py", code), 10, 0)} for code in (before, after)]
    assert len(drawn[0] & drawn[1]) >= 8
    assert drawn[0] != {mutant.text for mutant in sampled(mutants_of("a.py", before), 10, 1)}


def test_the_tests_of_a_mutant_are_those_that_run_its_line_or_its_statement() -> None:
    covering = Covering()
    covering.lines["a.py"].update({4: {"one"}, 6: {"two"}})
    covering.imported["a.py"].add(1)

    def of(line: int, statement: int) -> set[str]:
        return covering.of(Mutant("a.py", line, statement, 0, 0, "", "", ""))

    assert (of(4, 4), of(5, 4), of(5, 5)) == ({"one"}, {"one"}, set())
    assert of(1, 1) == {"one", "two"}, "what runs as the module is imported"


def test_a_run_has_an_end() -> None:
    assert in_fork(lambda: 3, 60, 60) == 3
    assert in_fork(lambda: signal.pause() or 0, 60, 0.05) is None
    assert in_fork(lambda: sum(iter(int, 1)), 1, 600) is None


def test_again_tries_only_what_an_earlier_run_named(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "conformance/tokenwire/checks/difference.py"
    survivor = mutants_of(str(path.relative_to(ROOT)), path.read_bytes())[3]
    tried: list[str] = []

    def try_mutant(_root: Path, mutant: Mutant, _covering: Covering) -> Outcome:
        tried.append(str(mutant))
        return Outcome.KILLED

    monkeypatch.setattr(mutants, "gather", lambda *_: Covering())
    monkeypatch.setattr(mutants, "try_mutant", try_mutant)
    output = f"{Outcome.SURVIVED}: {survivor}\nthe judge: 99% killed\n"
    mutants.run(Asked("the judge", [path], 1000, 0, output, []))
    assert set(tried) == {str(survivor)}
    mutants.run(Asked("the judge", [path], 1000, 0, "", []))
    assert len(tried) > 10


def test_what_is_listed_as_equivalent_is_a_mutant_and_has_a_reason() -> None:
    listed = yaml.safe_load(EQUIVALENT.read_text("utf-8"))
    assert all(item["reason"] for item in listed)
    for name in {item["file"] for item in listed}:
        every = mutants_of(name, (ROOT / name).read_bytes())
        made = {(mutant.text, change) for mutant in every for change in (mutant.change, ANY)}
        assert {(item["line"], item["mutation"]) for item in listed if item["file"] == name} <= made, name
