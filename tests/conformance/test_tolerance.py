"""Baselines: what they tolerate, and every way in which an entry does not hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tokenwire.ask import Budget
from tokenwire.baselines.baseline import Baseline, Rate, parse_baseline
from tokenwire.baselines.baseline_update import updated
from tokenwire.baselines.tolerance import Outcome, apply_baseline, why_uncovered
from tokenwire.cli import app
from tokenwire.judging.failure_kind import FailureKind, lasting_words
from tokenwire.judging.verdict import Verdict
from tokenwire.report.overview import outcome as outcome_in_words
from tokenwire.usage_error import UsageError

PATH = Path("known.toml")
TODAY = date(2026, 1, 31)
ID, SCENARIO = "cumulative-ids-extend", "probe"
KIND = FailureKind("sglang-generate", "/output_ids: id # was taken back")
OTHER = FailureKind("sglang-generate", "/output_ids: id # was changed")


class Bare(str):
    """A value that stands in a file as it is."""

    __slots__ = ()


def entry(section: str = "failure", **changed: object) -> str:
    values: dict[str, object] = {
        "requirement": ID,
        "scenario": SCENARIO,
        "dialect": KIND.dialect,
        "says": KIND.says,
        "fingerprint": KIND.fingerprint,
        "reason": "upstream is asked",
        "link": "https://example.org/1",
        **changed,
    }
    lines = [
        f"{name} = {value}" if isinstance(value, date | int | list | Bare) else f'{name} = "{value}"'
        for name, value in values.items()
        if value is not None
    ]
    return "\n".join([f"[[{section}]]", *lines, ""])


def outcome(
    verdict: Verdict, *kinds: FailureKind, scenario: str = SCENARIO, requirement: str = ID
) -> Outcome:
    return Outcome(requirement, scenario, verdict, kinds)


def apply(text: str, *run: Outcome, whole: bool = True):
    return apply_baseline(
        parse_baseline(PATH, text), run, uncovered="" if whole else "this run ended early", today=TODAY
    )


def faults(text: str, *run: Outcome, whole: bool = True) -> list[str]:
    return [fault.kind.value for fault in apply(text, *run, whole=whole).faults]


FAILS = outcome(Verdict.FAIL, KIND)


CAUSE = FailureKind("sglang-generate", "/usage: # ids for a budget of zero")
FOLLOWS = replace(outcome(Verdict.FAIL, OTHER), follows_from="zero-budget-has-no-ids")


def test_what_follows_from_a_known_cause_is_known() -> None:
    """A race shows in another row, or otherwise in the same one, each time: the baseline was red again."""
    cause = outcome(Verdict.FAIL, CAUSE, requirement="zero-budget-has-no-ids")
    known = entry(requirement=cause.requirement, says=CAUSE.says, fingerprint=CAUSE.fingerprint)
    held = apply(known, cause, FOLLOWS)
    assert held.faults == ()
    assert held.tolerated[FOLLOWS.name] == "it follows from zero-budget-has-no-ids, which is known"
    assert apply(known + entry(), cause, FOLLOWS).faults == (), "and no entry is wrong for it"


def test_what_follows_from_nothing_or_from_an_unknown_cause_is_new() -> None:
    cause = outcome(Verdict.FAIL, CAUSE, requirement="zero-budget-has-no-ids")
    known = entry(requirement=cause.requirement, says=CAUSE.says, fingerprint=CAUSE.fingerprint)
    assert FOLLOWS.name not in apply(known, cause, replace(FOLLOWS, follows_from="")).tolerated
    assert FOLLOWS.name not in apply(known, cause, FOLLOWS, replace(FOLLOWS, follows_from="")).tolerated
    assert FOLLOWS.name not in apply("", cause, FOLLOWS).tolerated
    elsewhere = replace(cause, scenario="greedy-stream")
    assert FOLLOWS.name not in apply(known, cause, elsewhere, FOLLOWS).tolerated, "one of its failures is new"
    passes = replace(cause, verdict=Verdict.PASS, kinds=())
    assert FOLLOWS.name not in apply(known, passes, FOLLOWS).tolerated


@pytest.mark.parametrize("older", ["is missing", "is too much"])
def test_one_race_seen_from_either_side_is_one_failure(older: str) -> None:
    says = f"/output_ids: entry # {older}: # instead of the # of the whole answer"
    written = entry(says=says, fingerprint=FailureKind(KIND.dialect, says).fingerprint)
    for words in ("entry 0 is missing: 0 instead of the 1", "entry 3 is too much: 4 instead of the 3"):
        now = FailureKind(KIND.dialect, lasting_words(f"/output_ids: {words} of the whole answer"))
        held = apply(written, outcome(Verdict.FAIL, now))
        assert (held.faults, len(held.tolerated)) == ((), 1)
        other = FailureKind(KIND.dialect, lasting_words(f"/output_ids: {words} of the stream"))
        assert apply(written, outcome(Verdict.FAIL, other)).tolerated == {}


LOST = "the tokens of the logprobs do not spell the text"
RACE = FailureKind("openai-responses", f"/response/output/#/content/#/logprobs: {LOST}")
MOVED = FailureKind("sglang-chat", f"/choices/#/logprobs/content: {LOST}")


def racy(section: str = "failure", budget: str = 'budget = "quick"\n', **changed: object) -> str:
    """An entry on a race that showed at one endpoint."""
    own = {"dialect": RACE.dialect, "says": RACE.says, "fingerprint": RACE.fingerprint}
    seen = {"seen-in": 1} if section == "failure" else {"at-most": "1 of 5"}
    return budget + entry(section, **{**own, "scenario": None, **seen, **changed})


@pytest.mark.parametrize("written", [racy(), racy("flaky")], ids=["in few scenarios", "not in each run"])
def test_a_race_may_show_at_another_endpoint_the_next_time(written: str) -> None:
    """Logprobs were lost in a Responses stream first, then in one of chat: an unchanged server was red."""
    held = apply(written, outcome(Verdict.FAIL, MOVED))
    assert (held.faults, list(held.tolerated)) == ((), [f"{ID}[{SCENARIO}]"])
    (note,) = [words for words in held.flaky if words.startswith("at another endpoint: ")]
    assert note.startswith(f"at another endpoint: {ID} (sglang-chat), known elsewhere")


@pytest.mark.parametrize(
    ("written", "kind", "scenarios"),
    [
        (racy(**{"seen-in": 5}), MOVED, 1),
        (racy(scenario=SCENARIO, **{"seen-in": None}), MOVED, 1),
        (racy(budget=""), MOVED, 1),
        (racy(), FailureKind(MOVED.dialect, f"{MOVED.says} at all"), 1),
        (racy(), MOVED, 5),
        (racy(reason=""), MOVED, 1),
    ],
    ids=["it shows often", "strict", "a recording", "other words", "in many scenarios", "a wrong entry"],
)
def test_what_is_no_race_or_fails_otherwise_is_new_at_another_endpoint(
    written: str, kind: FailureKind, scenarios: int
) -> None:
    run = [outcome(Verdict.FAIL, kind, scenario=f"{SCENARIO}{n or ''}") for n in range(scenarios)]
    assert apply(written, *run).tolerated == {}


def test_a_pair_that_is_decided_apart_is_one_failure_from_either_side() -> None:
    first, other = (
        lasting_words(
            f"506 prompt tokens and a budget of 1 were {words} in sglang-generate/context-border/506"
        )
        for words in ("refused, and answered", "answered, and refused")
    )
    assert first == other


def test_a_known_failure_is_tolerated_with_its_reason() -> None:
    held = apply(entry(), FAILS)
    assert held.tolerated == {f"{ID}[{SCENARIO}]": "upstream is asked (https://example.org/1)"}
    assert held.faults == ()


def test_a_failure_that_fails_in_one_more_way_is_not_known() -> None:
    held = apply(entry(), outcome(Verdict.FAIL, KIND, OTHER))
    assert held.tolerated == {}
    assert held.faults == ()


def test_a_failure_in_one_server_more_is_not_known() -> None:
    assert apply(entry(), FAILS, outcome(Verdict.FAIL, OTHER)).tolerated == {}


@pytest.mark.parametrize(
    ("changed", "run", "kind"),
    [
        ({}, outcome(Verdict.PASS), "stale"),
        ({}, outcome(Verdict.UNSUPPORTED, scenario="-"), "stale"),
        ({}, outcome(Verdict.FAIL, OTHER), "differently failing"),
        ({"requirement": "no-such-row"}, FAILS, "unmatched"),
        ({"scenario": "no-such-scenario"}, FAILS, "unmatched"),
        ({"expires": date(2026, 1, 30)}, FAILS, "expired"),
        ({"reason": " "}, FAILS, "unexplained"),
        ({"link": "#1"}, FAILS, "unexplained"),
        ({"scenario": "*"}, FAILS, "over-broad"),
        ({"says": "something milder"}, FAILS, "over-broad"),
    ],
)
def test_an_entry_that_does_not_hold_fails_the_run_and_tolerates_nothing(changed, run, kind) -> None:
    held = apply(entry(**changed), run)
    assert [fault.kind for fault in held.faults] == [kind]
    assert held.faults[0].message.startswith("known.toml, failure 1, ")
    assert held.tolerated == {}


SEVERAL = ["probe", "greedy-stream", "samples"]


def test_a_table_of_several_scenarios_holds_an_entry_for_each() -> None:
    failing = [outcome(Verdict.FAIL, KIND, scenario=name) for name in SEVERAL]
    held = apply(entry(scenario=SEVERAL), *failing)
    assert held.faults == ()
    assert held.tolerated.keys() == {f"{ID}[{name}]" for name in SEVERAL}
    gone = apply(entry(scenario=SEVERAL), *failing[:2], outcome(Verdict.PASS, scenario="samples"))
    assert [(fault.kind, fault.scenario) for fault in gone.faults] == [("stale", "samples")]
    assert gone.tolerated.keys() == {f"{ID}[{name}]" for name in SEVERAL[:2]}
    another = outcome(Verdict.FAIL, KIND, scenario="cached-prompt")
    assert another.name not in apply(entry(scenario=SEVERAL), *failing, another).tolerated


def anywhere(**changed: object) -> str:
    return f'budget = "quick"\n{entry(**{"scenario": None, "seen-in": 5, **changed})}'


def test_an_entry_without_a_scenario_tolerates_its_kind_wherever_it_shows() -> None:
    first, another = (outcome(Verdict.FAIL, KIND, scenario=name) for name in ("samples", "cached-prompt"))
    held = apply(anywhere(), first, another, outcome(Verdict.PASS))
    assert held.faults == ()
    assert held.tolerated.keys() == {first.name, another.name}
    assert apply(anywhere(), outcome(Verdict.FAIL, KIND, OTHER)).tolerated == {}
    elsewhere = outcome(Verdict.FAIL, KIND, requirement="whole-accumulates")
    assert elsewhere.name not in apply(anywhere(), first, elsewhere).tolerated
    assert apply(anywhere(reason=""), first, another).tolerated == {}


@pytest.mark.parametrize("run", [outcome(Verdict.PASS), outcome(Verdict.FAIL, OTHER)])
def test_an_entry_that_showed_in_many_scenarios_has_to_show_again(run) -> None:
    kind = "stale" if run.verdict is Verdict.PASS else "differently failing"
    assert faults(anywhere(), run) == [kind]
    held = apply(anywhere(**{"seen-in": 4}), run)
    assert held.faults == ()
    assert held.flaky == (
        f"not seen: {ID} ({KIND.dialect}), which few scenarios showed before; "
        "remove the entry if it is fixed",
    )
    assert apply(anywhere(**{"seen-in": 4}), run, whole=False).flaky == ()
    recorded = anywhere(**{"seen-in": 1}).replace('budget = "quick"', "")
    assert faults(recorded, run) == [kind], "a recording says the same each time"


def test_what_is_wrong_with_a_whole_table_is_said_once() -> None:
    failing = [outcome(Verdict.FAIL, KIND, scenario=name) for name in SEVERAL]
    (fault,) = apply(entry(dialect="x") + entry(scenario=SEVERAL, reason=""), *failing).faults[1:]
    words = f"{ID}[probe] and in 2 more: it has no reason; write why the failure is tolerated"
    assert (fault.kind, fault.message) == ("unexplained", f"known.toml, failure 2, {words}")


def test_a_scenario_twice_in_a_table_is_over_broad() -> None:
    assert faults(entry(scenario=["probe", "probe"]), FAILS) == ["over-broad"]


def test_an_entry_on_what_gates_nothing_is_unmatched() -> None:
    from tokenwire.requirement import Level, load_requirements

    should = next(row.id for row in load_requirements().values() if row.level is Level.SHOULD)
    assert faults(entry(requirement=should)) == ["unmatched"]


def test_an_entry_twice_is_over_broad() -> None:
    assert faults(entry() + entry(), FAILS) == ["over-broad"]


def test_the_last_day_still_counts() -> None:
    assert faults(entry(expires=TODAY), FAILS) == []


@pytest.mark.parametrize("run", [(), (outcome(Verdict.PASS),), (outcome(Verdict.FAIL, OTHER),)])
def test_a_run_that_asked_less_makes_nothing_stale(run) -> None:
    assert faults(entry(), *run, whole=False) == []


def test_what_was_not_judged_is_not_stale() -> None:
    assert faults(entry(), outcome(Verdict.PASS, requirement="done-ends-the-stream")) == []
    assert faults(entry(), outcome(Verdict.HARNESS_ERROR)) == []


# Flaky failures


def flaky(**changed: object) -> str:
    return entry("flaky", **{"at-most": "1 of 5", **changed})


@pytest.mark.parametrize(
    ("failures", "runs", "run", "kinds"),
    [
        (0, 0, FAILS, []),
        (1, 5, FAILS, ["too often"]),
        (1, 9, FAILS, []),
        (1, 8, FAILS, ["too often"]),
        (1, 3, outcome(Verdict.PASS), []),
        (0, 13, outcome(Verdict.PASS), []),
        (0, 14, outcome(Verdict.PASS), ["stale"]),
    ],
)
def test_a_flaky_failure_is_bounded_on_both_sides(failures, runs, run, kinds) -> None:
    assert faults(flaky(failures=failures, runs=runs), run) == kinds


@pytest.mark.parametrize(
    ("run", "words"), [(FAILS, "failed; 1 of 3"), (outcome(Verdict.PASS), "did not fail; 0 of 3")]
)
def test_a_flaky_failure_is_always_told(run, words) -> None:
    (line,) = apply(flaky(runs=2), run).flaky
    assert words in line
    assert "at most 1 of 5: upstream is asked (https://example.org/1)" in line


def test_a_rate_counts_few_runs_as_the_least() -> None:
    assert Rate(1, 5).allows(1, 1)
    assert not Rate(1, 5).allows(2, 6)


# The file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[failur]]\n", "did you mean 'failure'?"),
        ('budget = "fast"\n', "budget is 'fast'"),
        (entry(fingerprint=None), "'fingerprint' is missing"),
        (entry(resaon="x"), "did you mean 'reason'?"),
        (entry(expires="soon"), "is not a date such as 2030-01-31"),
        (entry("flaky"), 'write at-most = "1 of 5"'),
        (entry("flaky", **{"at-most": "5 of 5"}), "not a rate below 1"),
        (entry(failures=1), "there is no 'failures'"),
        (flaky(failures=2, runs=1), "2 failures in 1 runs are impossible"),
        ("failure = 3\n", "write [[failure]]"),
        (entry(scenario=[]), "scenario is empty"),
        (entry(scenario=[3]), "scenario: [3] is not a text or a list, each entry a text or null"),
        (flaky(scenario=["probe"]), "a flaky failure has a table for each scenario"),
        (flaky(**{"seen-in": 3}), "there is no 'seen_in'"),
        (anywhere(**{"seen-in": -1}), "seen-in is -1, not a count"),
        (entry(scenario=""), "remove the key to tolerate the violation in every scenario"),
    ],
)
def test_a_file_that_is_no_baseline_is_told_so(text, words) -> None:
    with pytest.raises(UsageError) as caught:
        parse_baseline(PATH, text)
    assert words in str(caught.value)
    assert "known.toml" in str(caught.value)


def test_numbers_texts_and_lists_are_not_part_of_a_kind() -> None:
    assert lasting_words("id 7 is 12, but -3.5 in 'it\\'s' [1, [2]]") == "id # is #, but # in '…' …"
    assert lasting_words("/choices/0/token_ids/12") == "/choices/#/token_ids/#"
    assert lasting_words("5 entries for 1 output id") == lasting_words("5 entries for 4 output ids")
    assert lasting_words("holds 1 entry instead of 5") == lasting_words("holds 2 entries instead of 5")
    assert lasting_words("it's 'a' and \"b") == "it'…'a' and \"b"
    assert lasting_words("'a\\'b \"c\" it's 7") == "'…'s #"
    assert lasting_words("\"a\\\"b 'c'") == "\"a\\\"b '…'"
    assert lasting_words("...7.., v1.2-rc.") == "#.., #."
    assert lasting_words("of 1, 2, 3") == lasting_words("of 4, 5")
    assert lasting_words("no finish reason") == "no finish reason"


# Rewriting


def report(*kinds: FailureKind, filters: tuple[str, ...] = (), budget: str | None = "standard", **changed):
    row = {
        "requirement": ID,
        "scenario": SCENARIO,
        "verdict": "FAIL" if kinds else "PASS",
        "kinds": [{"dialect": kind.dialect, "says": kind.says} for kind in kinds],
    }
    selection = {"filters": list(filters), "budget": budget}
    return {
        "verdicts": [row],
        "target": {},
        "exit_status": 1 if kinds else 0,
        "selection": selection,
        **changed,
    }


@pytest.fixture
def known(tmp_path: Path) -> Path:
    return tmp_path / "known.toml"


def rewrite(known: Path, *reports, strict: bool = False) -> str:
    text = updated(known, {f"r{n}.json": report for n, report in enumerate(reports)}, strict=strict).text
    known.write_text(text, "utf-8")
    return text


def test_a_new_baseline_names_its_failures_and_wants_their_reasons(known: Path) -> None:
    baseline = parse_baseline(known, rewrite(known, report(KIND)))
    assert [entry.kind for entry in baseline.entries] == [KIND]
    assert baseline.budget == "standard"
    held = apply_baseline(baseline, [FAILS], today=TODAY)
    assert [fault.kind for fault in held.faults] == ["unexplained"]


def test_rewriting_keeps_what_people_wrote_and_removes_what_has_gone(known: Path) -> None:
    gone = FailureKind("vllm-generate", "gone")
    other = entry(dialect=gone.dialect, says=gone.says, fingerprint=gone.fingerprint)
    kept = f"# Ours.\n\n# About the gone.\n{other}"
    kept += f"# About the kept.\n{entry()}# and more of it\n"
    known.write_text(kept, "utf-8")
    text = rewrite(known, report(KIND, OTHER))
    assert "# Ours." in text
    assert "# About the gone." not in text
    assert "# About the kept.\n[[failure]]" in text
    assert "# and more of it" in text
    assert 'reason = "upstream is asked"' in text
    assert [item.kind for item in parse_baseline(known, text).entries] == [KIND, OTHER]
    assert rewrite(known, report(KIND, OTHER)) == text


def in_scenarios(*names: str, failing: tuple[str, ...] | None = None) -> dict[str, object]:
    """A report on several scenarios, all or some of which fail in one way."""
    of_one = report(KIND)
    rows = [
        {**of_one["verdicts"][0], "scenario": name}
        if failing is None or name in failing
        else {**of_one["verdicts"][0], "scenario": name, "verdict": "PASS", "kinds": []}
        for name in names
    ]
    return {**of_one, "verdicts": rows}


def test_a_baseline_of_one_report_holds_on_the_next_run_and_on_nothing_new(known: Path) -> None:
    rewrite(known, in_scenarios(*SEVERAL, failing=("probe",)))
    known.write_text(known.read_text().replace('= ""', '= "https://h/1"'), "utf-8")
    baseline = parse_baseline(known, known.read_text())
    assert [(entry.scenario, entry.seen_in) for entry in baseline.entries] == [("", 1)]
    elsewhere = outcome(Verdict.FAIL, KIND, scenario="samples")
    held = apply_baseline(baseline, [outcome(Verdict.PASS), elsewhere], today=TODAY)
    assert (held.faults, held.tolerated.keys()) == ((), {elsewhere.name})
    nowhere = apply_baseline(baseline, [outcome(Verdict.PASS)], today=TODAY)
    assert nowhere.faults == ()
    for new in (outcome(Verdict.FAIL, OTHER), outcome(Verdict.FAIL, KIND, requirement="whole-accumulates")):
        assert apply_baseline(baseline, [new], today=TODAY).tolerated == {}


def test_the_second_run_of_an_unchanged_racy_server_stays_green(known: Path) -> None:
    """One race shows at another endpoint, another from its other side, a third in what follows from it."""
    series = "/meta_info/logprobs: entry # is {}: # instead of the # of the whole answer"
    sides = [FailureKind("sglang-generate", lasting_words(series.format(w))) for w in ("missing", "too much")]
    rewrite(known, report(RACE, sides[0], CAUSE))
    known.write_text(known.read_text().replace('= ""', '= "https://h/1"'), "utf-8")
    baseline = parse_baseline(known, known.read_text())
    follows = replace(FOLLOWS, requirement="stream-ids-equal-whole", follows_from=ID)
    second = [outcome(Verdict.FAIL, MOVED, sides[1], CAUSE), follows]
    held = apply_baseline(baseline, second, today=TODAY)
    assert held.faults == ()
    assert held.tolerated.keys() == {one.name for one in second}


def test_a_kind_is_written_down_once_wherever_it_fails(known: Path) -> None:
    text = rewrite(known, in_scenarios(*SEVERAL), in_scenarios(*SEVERAL, failing=("probe", "samples")))
    (entry,) = parse_baseline(known, text).entries
    assert (entry.name, entry.section, entry.seen_in) == (ID, "failure", 2)
    assert rewrite(known, in_scenarios(*SEVERAL, "cached-prompt", failing=("cached-prompt",))) == text
    gone = updated(known, {"r.json": in_scenarios(*SEVERAL, failing=())})
    assert gone.removed == (f"{ID}  at sglang-generate: /output_ids: id # was taken back",)


def test_what_fails_alike_in_several_scenarios_stands_in_one_strict_table(known: Path) -> None:
    first = updated(
        known,
        {"r.json": in_scenarios(*SEVERAL)},
        reason="one cause",
        link="https://example.org/2",
        strict=True,
    )
    (new,) = first.added
    assert new.in_words.startswith(f"{ID}  at sglang-generate, in greedy-stream, probe, samples: ")
    baseline = parse_baseline(known, first.text)
    assert [len(table) for table in baseline.tables()] == [3]
    assert {(entry.reason, entry.link) for entry in baseline.entries} == {
        ("one cause", "https://example.org/2")
    }
    failing = [outcome(Verdict.FAIL, KIND, scenario=name) for name in SEVERAL]
    assert apply_baseline(baseline, failing, today=TODAY).faults == ()


def test_a_table_loses_what_has_gone_and_gets_nothing_that_nobody_gave_a_reason(known: Path) -> None:
    known.write_text(f"# Ours.\n{entry(scenario=SEVERAL)}# and more of it\n", "utf-8")
    later = in_scenarios(*SEVERAL, "cached-prompt", failing=("probe", "samples", "cached-prompt"))
    change = updated(known, {"r.json": later})
    assert (change.kept, change.removed) == (
        2,
        (f"{ID}[greedy-stream]  at sglang-generate: /output_ids: id # was taken back",),
    )
    old, new = parse_baseline(known, change.text).tables()
    assert [(judgement.scenario, judgement.reason) for judgement in old] == [
        ("probe", "upstream is asked"),
        ("samples", "upstream is asked"),
    ]
    assert [(judgement.scenario, judgement.reason) for judgement in new] == [("cached-prompt", "")]
    assert "# Ours.\n[[failure]]" in change.text
    assert "# and more of it" in change.text


@pytest.mark.parametrize("key", ["scenario", '"scenario"', "'scenario' "])
def test_a_list_of_scenarios_is_narrowed_however_it_is_written(known: Path, key: str) -> None:
    listed = entry(scenario=["probe", "samples"]).replace("'samples']", "'samples' # not ] this\n] # ours")
    known.write_text(listed.replace("scenario", key), "utf-8")
    change = updated(known, {"r.json": in_scenarios("probe", "samples", failing=("probe",))})
    assert '= "probe" # ours\n' in change.text
    assert change.text.replace('= "probe" # ours', "") == listed.replace("scenario", key).replace(
        "= ['probe', 'samples' # not ] this\n] # ours", ""
    )


def test_counts_that_a_flaky_entry_lacks_are_written_below_it(known: Path) -> None:
    commented = f"{flaky().rstrip()} # ours\n# and more of it\n"
    other = f"# About the next.\n{entry(requirement='whole-accumulates')}"
    known.write_text(f"{commented}\n\n{other}", "utf-8")
    text = rewrite(known, report(KIND), report())
    assert text.replace("\n", "") == f"{commented}failures = 1runs = 2{other}".replace("\n", "")
    assert "\nfailures = 1\nruns = 2\n" in text


def test_what_fails_now_and_then_stands_by_itself(known: Path) -> None:
    runs = {"a.json": in_scenarios(*SEVERAL), "b.json": in_scenarios(*SEVERAL, failing=())}
    tables = parse_baseline(known, updated(known, runs, strict=True).text).tables()
    assert [(entry.section, entry.scenario) for (entry,) in tables] == [
        ("flaky", "greedy-stream"),
        ("flaky", "probe"),
        ("flaky", "samples"),
    ]


def test_a_failure_of_some_runs_becomes_flaky_and_is_counted_on(known: Path) -> None:
    rewrite(known, report(KIND), report(), report())
    (first,) = parse_baseline(known, known.read_text("utf-8")).entries
    # Not 1 of 3: every other run to come would exceed what was only counted.
    assert (first.at_most, first.failures, first.runs) == (Rate(18, 20), 1, 3)
    rewrite(known, report(KIND), report())
    (second,) = parse_baseline(known, known.read_text("utf-8")).entries
    assert (second.at_most, second.failures, second.runs) == (Rate(18, 20), 2, 5)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"filters": ("-k", "--profile")},
            "was made with -k --profile, and the baseline was written from a run with no filters",
        ),
        ({"budget": "quick"}, "ask with --budget standard"),
        ({"budget": None}, "of a recording"),
        ({"target": {"broken_off": "it hung"}}, "broken off (it hung)"),
        ({"exit_status": 3}, "the suite itself failed"),
        ({"exit_status": 4}, "check that the target answers"),
    ],
)
def test_a_report_that_does_not_speak_for_all_rewrites_nothing(known: Path, changed, words) -> None:
    known.write_text(f'budget = "standard"\n{entry()}', "utf-8")
    with pytest.raises(UsageError) as caught:
        updated(known, {"r.json": report(**changed)})
    assert words in str(caught.value)
    assert str(caught.value).startswith("r.json ")


DIED = "the server died of sglang-generate/negative-ids/-1-whole; {} exchanges were not asked"


def test_a_baseline_of_a_run_that_died_under_filters_is_held_to_runs_of_the_same(known: Path) -> None:
    """As SGLang 0.5.23 does of each standard run: it could not be gated at all."""

    def run(left: int, *filters: str, of: str = DIED):
        return report(KIND, filters=filters, target={"broken_off": of.format(left)})

    rewrite(known, run(7, "--gentle"))
    baseline = parse_baseline(known, known.read_text("utf-8"))
    assert baseline.filters == ("--gentle",)
    assert baseline.broken_off == DIED.partition(";")[0]
    assert updated(known, {"r.json": run(9, "--gentle")}).kept == 1
    assert updated(known, {"r.json": report(KIND, filters=("--gentle",))}).kept == 1
    with pytest.raises(UsageError, match=r"was made with no filters, and the baseline .* --gentle; use"):
        updated(known, {"r.json": run(7)})
    with pytest.raises(UsageError, match="broken off"):
        updated(known, {"r.json": run(7, "--gentle", of="the server died of another; {}")})
    uncovered = partial(why_uncovered, baseline, budget=Budget.STANDARD)
    assert uncovered(DIED.format(3), filters=["--gentle"]) == uncovered("", filters=[]) == ""
    assert uncovered("the server died of another", filters=["--gentle"]) == "this run ended early"
    words = "this run was made with --scenario probe, unlike the run of the baseline"
    assert uncovered("", filters=["--scenario probe"]) == words


def test_a_baseline_that_cannot_be_taken_apart_is_left_alone(known: Path) -> None:
    known.write_text(f'failure = [{{ requirement = "{ID}" }}]\n', "utf-8")
    with pytest.raises(UsageError):
        updated(known, {"r.json": report(KIND)})
    inline = ", ".join(line for line in entry().splitlines()[1:] if line)
    known.write_text(f"failure = [{{ {inline} }}]\n", "utf-8")
    with pytest.raises(UsageError, match="write each entry as its own"):
        updated(known, {"r.json": report(KIND)})


def test_an_empty_baseline_holds() -> None:
    assert apply_baseline(Baseline(PATH), [FAILS], today=TODAY).faults == ()


@pytest.mark.parametrize("command", ["show", "check"])
def test_what_a_baseline_of_others_says_cannot_act_on_the_terminal(command: str, tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(entry(scenario="\\u001b[2J", dialect="*"), "utf-8")
    ran = CliRunner().invoke(app, ["baseline", command, str(file)])
    assert "\\x1b[2J" in ran.output
    assert "\x1b" not in ran.output


def test_a_smaller_run_says_which_entries_it_could_not_look_for() -> None:
    text = f'budget = "standard"\n{entry()}{entry(says=OTHER.says, fingerprint=OTHER.fingerprint)}'
    baseline = parse_baseline(PATH, text)
    why = why_uncovered(baseline, "", Budget.QUICK)
    assert (
        why == "this run asked with --budget quick, and the run of the baseline asked with --budget standard"
    )
    held = apply_baseline(baseline, [FAILS], uncovered=why, today=TODAY)
    assert held.as_json(())["unseen"] == {"entries": 1, "of": 2, "because": why}
    assert "unseen" not in apply_baseline(baseline, [FAILS], today=TODAY).as_json(())
    made = {**report(KIND), "exit_status": 0, "baseline": held.as_json(())}
    words = f"; 1 of 2 entries of the baseline not seen, and perhaps not fixed: {why}"
    assert outcome_in_words(made).endswith(words)
