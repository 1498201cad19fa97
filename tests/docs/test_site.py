"""The pages that are made: every requirement, command and capture has one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from html import unescape

import pytest
import typer.main
from docs_build import bug_page, command_pages, found_page, published, requirement_pages, results_pages
from docs_build.bug_page import faults
from docs_build.page import Page, fenced, inert, link, linked, named, relative
from docs_build.requirement_pages import VIOLATIONS, violation_of
from docs_build.results import Cell, Column, judged, manifest

from tokenwire.baselines.expected import expected_file, read_expected
from tokenwire.cli import all_commands, app
from tokenwire.judging.verdict import Verdict
from tokenwire.requirement import Level, load_requirements
from tokenwire_faults.catalogue import load_faults
from tokenwire_reference.doors.fault_package import HEADER

REQUIREMENTS = load_requirements()
VERDICTS = {Level.MUST: Verdict.FAIL, Level.SHOULD: Verdict.WARN, Level.MAY: Verdict.INFO}
"""What a violation of a sentence of each level shows as."""
SMALL = "sglang/0.5.23/Q_queue.jsonl.gz"
RED_CAPTURE = "sglang/0.5.23/E2_skiptok_incr.jsonl.gz"


def column(**cells: Cell) -> Column:
    undecided = Cell(Verdict.UNSUPPORTED, 0, "no answer carries it | at all")
    every = dict.fromkeys(REQUIREMENTS, undecided)
    cells = every | {name.replace("_", "-"): cell for name, cell in cells.items()}
    return Column("sglang/9.9/case.jsonl.gz", "SGLang 9.9, as it is", "sglang", "9.9", ("--flag",), 3, cells)


RED = Cell(Verdict.FAIL, 4, "it is wrong", "one_stream", 7, "/output_ids/2", "FAIL  …\n >    7  data: {}")


@cache
def pages_of_requirements() -> dict[str, Page]:
    return {page.uri: page for page in requirement_pages.pages([column(one_mode_per_stream=RED)])}


@pytest.mark.parametrize(
    ("path", "address"), [("a/fork", "https://github.com/a/fork"), ("OWNER/tokenwire", "")]
)
def test_one_address_makes_the_link_to_the_repository_and_fills_the_examples(
    path, address, tmp_path, monkeypatch
):
    found = (published.ROOT / "pyproject.toml").read_text("utf-8")
    assert f"https://github.com/{published.PLACEHOLDER}" in found
    (tmp_path / "pyproject.toml").write_text(found.replace(published.PLACEHOLDER, path), "utf-8")
    monkeypatch.setattr(published, "ROOT", tmp_path)
    assert published.repository() == address
    assert published.with_repository("- uses: OWNER/tokenwire@main") == f"- uses: {path}@main"


def test_every_requirement_has_a_page_and_stands_in_the_list():
    pages = pages_of_requirements()
    assert set(pages) == {f"requirements/{name}.md" for name in [*REQUIREMENTS, "index"]}
    listed = re.findall(r"\| \[([a-z0-9-]+)\]\(([a-z0-9-]+)\.md\) \|", pages["requirements/index.md"].content)
    assert listed == [(name, name) for name in REQUIREMENTS]


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_the_page_of_a_requirement_tells_all_of_it(name):
    row, content = REQUIREMENTS[name], pages_of_requirements()[f"requirements/{name}.md"].content
    assert f"> {row.sentence}" in content
    assert f"tokenwire check --target URL --requirement {name}" in content
    for fault in row.kills:
        assert f"- `{fault}`: {load_faults()[fault].does}" in content
    for thread in row.upstream:
        assert linked(thread) in content


def test_a_page_leads_on_and_shows_what_is_right_beside_what_is_wrong():
    seen = Cell(Verdict.PASS, 3, "", "one_stream", 7, "/text", time=0.5, excerpt='{"text":"a"}')
    made = requirement_pages.pages([column(one_mode_per_stream=seen)])
    content = {page.uri: page.content for page in made}["requirements/one-mode-per-stream.md"]
    names = list(REQUIREMENTS)
    place = names.index("one-mode-per-stream")
    assert f"[← {names[place - 1]}]({names[place - 1]}.md)" in content
    assert f"[{names[place + 1]} →]({names[place + 1]}.md)" in content
    assert "And where it holds: SGLang 9.9, as it is, `one_stream`, `/text`:" in content
    order = ["## What a violation looks like", "And where it holds", "## Why", "## In short"]
    assert sorted(order, key=content.index) == order


def test_a_defect_of_a_released_server_is_told_with_its_release_and_its_bytes():
    capture = next(name for name in manifest() if name.startswith("sglang/0.5.23/live-incremental."))
    red = replace(
        RED, shown="FAIL  chat-chunks-share-a-choice-id  in x\n  found  it\n > 7  data: {}\n  curl -s x"
    )
    released = replace(column(chat_chunks_share_a_choice_id=red), capture=capture, version="0.5.23")
    content = found_page.page([released]).content
    assert "### Chat streams with n 2 give the finish chunk of one choice the id of another" in content
    part = content.split("### Chat streams with n 2")[1].split("###")[0]
    assert "**Releases:** SGLang 0.5.23" in part
    assert "**Source:** SGLang 0.5.23 serving_chat.py" in part
    assert "issues/39864" in part
    assert " > 7  data: {}" in part
    assert "curl" not in part
    assert all(defect.does in content or defect.does[1:] in content for defect in found_page.defects())


def test_the_home_and_the_readme_count_defects_and_bugs_as_they_are():
    all_bugs = int(re.search(r"^\| all \| (\d+) \|", bug_page.page().content, re.MULTILINE)[1])
    for name, counted in {
        "README.md": {"defects": len(found_page.defects())},
        "docs/index.md": {"defects": len(found_page.defects()), "bugs": all_bugs},
    }.items():
        text = (published.ROOT / name).read_text("utf-8")
        claimed = dict(re.findall(r"[Mm]ore than (\d+) \[?(defects|bugs)", text))
        claimed = {noun: int(number) for number, noun in claimed.items()}
        assert claimed.keys() == counted.keys()
        for noun, number in counted.items():
            assert claimed[noun] <= number < claimed[noun] + 25, (
                f"{name} says more than {claimed[noun]} {noun}, there are {number}"
            )


def test_a_page_tells_what_recorded_servers_do():
    content = pages_of_requirements()["requirements/one-mode-per-stream.md"].content
    assert (
        "| SGLang 9.9, as it is | [FAIL](../results/sglang-9.9-case.md#one-mode-per-stream) | it is wrong |"
        in content
    )


def test_faults_are_read_from_the_source_as_the_engine_knows_them():
    found = {name: (fault.does, fault.upstream, fault.room) for name, fault in faults().items()}
    assert found == {name: (known.does, known.upstream, known.room) for name, known in load_faults().items()}


@pytest.mark.parametrize("name", [name for name, row in REQUIREMENTS.items() if row.kills])
def test_every_requirement_shows_a_violation_by_a_fault_that_it_catches(name):
    """Where a sentence is new: python -m proofs.violations."""
    text = violation_of(name).read_text("utf-8")
    fault = re.search(rf"--header '{HEADER}: (.+?)'", text)
    assert fault is not None
    assert fault[1] in REQUIREMENTS[name].kills
    row = REQUIREMENTS[name]
    verdicts = {VERDICTS[level] for level in (row.level, *map(row.level_for, ("sglang", "vllm", "openai")))}
    assert re.search(rf"^({'|'.join(verdicts)})  {name}  in ", text, re.MULTILINE)
    assert "  expected  " in text
    assert "http://127.0.0.1:" not in text.replace("http://127.0.0.1:30000", "")


@pytest.mark.parametrize("path", sorted(VIOLATIONS.iterdir()), ids=lambda path: path.stem)
def test_a_violation_is_kept_as_the_printer_prints_it_now(path):
    """An older printer wrote what was found behind the value, and the bytes of each event."""
    text = path.read_text("utf-8")
    labels = re.findall(r"^  (found|expected|actual|first seen)\b", text, re.MULTILINE)
    assert labels[-3:] == ["expected", "actual", "first seen"]
    assert labels[:-3] in (["found"], [])  # some findings are said by the two values alone
    assert not re.search(r"^  actual .*  \(.*\)$", text, re.MULTILINE)
    assert not re.search(r"^ [ >] +\d+ +[\d.]+ s +\d+-\d+ ", text, re.MULTILINE)


def test_no_violation_is_kept_of_what_is_no_requirement():
    assert {path.stem for path in VIOLATIONS.iterdir()} <= set(REQUIREMENTS)


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("a/b PR #12", "[a/b PR #12](https://github.com/a/b/pull/12)"),
        ("see a.c/b-d issue #3.", "see [a.c/b-d issue #3](https://github.com/a.c/b-d/issues/3)."),
        ("no thread", "no thread"),
    ],
)
def test_threads_lead_to_their_place(text, there):
    assert linked(text) == there


def test_every_thread_of_a_requirement_is_one_that_can_be_linked():
    assert [
        thread for row in REQUIREMENTS.values() for thread in row.upstream if linked(thread) == thread
    ] == []


def test_what_a_server_wrote_stays_in_its_block():
    assert fenced("a\n```\nb\n", "text") == "````text\na\n```\nb\n````"
    assert fenced("a", "text") == "```text\na\n```"


def test_the_way_from_page_to_page():
    assert relative("requirements/a.md", "spec/b.md") == "../requirements/a.md"
    assert link("words", "spec/b.md#part", "index.md") == "[words](spec/b.md#part)"


@pytest.mark.parametrize(
    ("words", "there"),
    [
        (
            "see `one-mode-per-stream`.",
            "see [`one-mode-per-stream`](../requirements/one-mode-per-stream.md).",
        ),
        ("[`one-mode-per-stream`](x)", "[`one-mode-per-stream`](x)"),
        ("`no-such-thing` and `output_ids`", "`no-such-thing` and `output_ids`"),
        ("```text\n`one-mode-per-stream`\n```", "```text\n`one-mode-per-stream`\n```"),
    ],
)
def test_a_requirement_that_is_named_is_linked(words, there):
    assert named(words, "guides/a.md") == there


def test_a_page_does_not_lead_to_itself():
    assert named("`one-mode-per-stream`", "requirements/one-mode-per-stream.md") == "`one-mode-per-stream`"


def test_links_of_a_file_fit_its_page():
    words = "[a](metadata.md#x) [b](schemas/) [c](../noxfile.py) [d](https://host) [f](#g)"
    assert published.relinked(words, "spec/tito.md", "requirements/one.md") == (
        "[a](../spec/metadata.md#x) [b](../spec/schemas/index.md) c [d](https://host) [f](../spec/tito.md#g)"
    )


def test_every_sentence_of_a_chapter_leads_to_its_page():
    chapters = "".join(page.content for page in published.pages() if page.uri.startswith("spec/"))
    for name in REQUIREMENTS:
        assert f'<a id="{name}"></a>**[{name}](../requirements/{name}.md)** (' in chapters


def commands(command, path="tokenwire", parent=None):
    """Every command, and every option that its help page tells."""
    context = command.make_context(path, [], parent, resilient_parsing=True)
    for sub in command.list_commands(context) if hasattr(command, "list_commands") else ():
        _, found, _ = command.resolve_command(context, [sub])
        yield from commands(found, f"{path} {sub}", context)
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            yield path, record[0]


def test_the_reference_of_the_commands_tells_every_option():
    content = command_pages.page().content
    commands_ = list(commands(typer.main.get_command(app)))
    assert len(commands_) > 60
    assert {path.split()[1] for path, _ in commands_ if " " in path} == set(all_commands())
    for path, option in commands_:
        assert path == "tokenwire" or re.search(rf"^##+ {path}$", content, re.MULTILINE), path
        assert f"| `{option.replace('|', chr(92) + '|')}` |" in content


def test_every_cell_of_the_results_leads_to_what_decided_it():
    table, evidence = results_pages.pages([column(one_mode_per_stream=RED)])
    to = (
        '<td class="tw-fail" data-name="sglang 9.9"><a href="../results/sglang-9.9-case/#one-mode-per-stream"'
    )
    assert table.content.count(to) == 1
    assert table.content.count("<td ") == len(REQUIREMENTS)
    assert "### one-mode-per-stream { #one-mode-per-stream }" in evidence.content
    assert "First seen in exchange `one_stream`, event 7, `/output_ids/2`." in evidence.content
    assert RED.shown in evidence.content
    for name in set(REQUIREMENTS) - {"one-mode-per-stream"}:
        assert f'<a id="{name}"></a>' in evidence.content
    assert "no answer carries it \\| at all" in evidence.content


def test_the_results_are_those_that_the_repository_expects():
    cells = judged(SMALL).cells
    expected = read_expected(published.ROOT / "fixtures" / expected_file(SMALL)).outcomes
    unlisted = {Verdict.PASS, Verdict.UNSUPPORTED, Verdict.NOT_TESTABLE, Verdict.INCONCLUSIVE}
    listed = {name: cell.verdict for name, cell in cells.items() if cell.verdict not in unlisted}
    assert listed == {name: outcome.verdict for name, outcome in expected.items()}
    assert set(cells) == set(REQUIREMENTS)


def test_a_violation_among_the_results_names_its_event():
    red = {name: cell for name, cell in judged(RED_CAPTURE).cells.items() if cell.verdict is Verdict.FAIL}
    assert red
    for name, cell in red.items():
        assert cell.exchange
        assert cell.shown.startswith(f"FAIL  {name}  in ")


def test_a_pass_among_the_results_names_a_witness_and_shows_what_stood_there():
    green = {name: cell for name, cell in judged(SMALL).cells.items() if cell.verdict is Verdict.PASS}
    assert green
    for cell in green.values():
        assert cell.exchange
        assert cell.excerpt
    _, evidence = results_pages.pages([judged(SMALL)])
    assert evidence.content.count("<details><summary>") == len(green)
    seen = Cell(Verdict.PASS, 3, "", "one_stream", 7, "/text", time=0.5, excerpt='{"text":"a|*b*"}')
    _, evidence = results_pages.pages([column(one_mode_per_stream=seen)])
    place = f"<code>{inert('one_stream')}</code>, event 7, at 0.500 s, <code>{inert('/text')}</code>"
    assert (
        f"<details><summary>{place}</summary><code>{inert(seen.excerpt)}</code></details>" in evidence.content
    )


def test_what_a_server_wrote_into_a_cell_is_neither_markdown_nor_html():
    words = "|*a*_b_`c`<i>[d](e)\\&amp;"
    assert set("|*_`<>[]()\\") & set(inert(words)) == set()
    assert unescape(inert(words)) == words


def test_a_capture_is_named_where_it_lies():
    found = judged(SMALL)
    assert (found.capture, found.title) == (SMALL, "SGLang 0.5.23, one request at a time, a queue of two")
    assert found.uri == "results/sglang-0.5.23-Q_queue.md"
    _, evidence = results_pages.pages([found])
    judged_with = " --tokenizer fixtures/models/tiny-qwen2" if found.tokenizer else ""
    assert found.tokenizer in ("", "fixtures/models/tiny-qwen2")
    assert f"$ tokenwire replay fixtures/{SMALL}{judged_with}\n" in evidence.content


def test_servers_with_faults_are_no_results():
    assert SMALL in manifest()
    assert not any("fault" in known for known in manifest().values())


def test_a_result_without_a_violation_is_not_shown_as_one():
    green = replace(RED, verdict=Verdict.PASS, shown="", exchange="")
    _, evidence = results_pages.pages([column(one_mode_per_stream=green)])
    assert "## What was violated" not in evidence.content


def _lines(markdown: str) -> list[str]:
    """The lines that are no code."""
    return re.sub(r"^(`{3,}).*?^\1$", "", markdown, flags=re.MULTILINE | re.DOTALL).splitlines()


def _every_page() -> Iterator[tuple[str, str]]:
    """All pages but those that every capture has, with their Markdown."""
    made = (*published.pages(), *requirement_pages.pages([column(one_mode_per_stream=RED)]))
    results = [column(one_mode_per_stream=RED)]
    made = (
        *made,
        *results_pages.pages(results),
        bug_page.page(),
        command_pages.page(),
        found_page.page(results),
    )
    yield from ((page.uri, page.content) for page in made if page.uri.endswith(".md"))
    docs = published.ROOT / "docs"
    yield from ((str(path.relative_to(docs)), path.read_text("utf-8")) for path in docs.rglob("*.md"))


@pytest.mark.parametrize(("uri", "markdown"), list(_every_page()), ids=lambda words: words[:40])
def test_a_page_has_one_headline_and_shows_what_it_includes(uri: str, markdown: str) -> None:
    """A line that begins with `#10914` is a headline, and a formatter made a snippet of an include."""
    headlines = [line for line in _lines(markdown) if re.match(r"#(?!#)", line)]
    assert len(headlines) == 1, f"{uri}: {headlines}"
    assert [line for line in _lines(markdown) if re.match(r"#+[^# ]", line)] == [], uri
    included = [line for line in markdown.splitlines() if re.match(r"\s*-+\s*8\s*<", line)]
    assert all(re.fullmatch(r'--8<-- "\S+"', line) for line in included), f"{uri}: {included}"
