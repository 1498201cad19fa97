"""Chapter 0 knows every field of every dialect and shows every endpoint; its tables are those of the data."""

from __future__ import annotations

from collections.abc import Mapping

from docs_build.field_tables import CHAPTER, PAGES, asked, dialects, recorded, with_tables
from worked_examples import examples

from tokenwire.ask import RULES
from tokenwire.dialects.recognition import DialectResolver
from tokenwire.replay import read_run
from tokenwire.spec_files import load_schema, read_yaml, spec_root

RESULTS = [dialect for dialect in dialects() if dialect["schemas"]["whole"] == "results-response"]
WITHOUT_RECORDING = {
    ("anthropic-messages", False),  # chapter 19 shows what both write; recorded prompts are long
    ("anthropic-messages", True),
    ("openai-responses", False),
    ("openai-responses", True),
    *((dialect["name"], streamed) for dialect in RESULTS for streamed in (False, True)),  # chapter 21
    ("lmdeploy-generate", False),
    ("lmdeploy-generate", True),
    ("openai-completions", False),
    ("openai-completions", True),
}


def described(kind: str) -> Mapping[str, Mapping[str, str]]:
    return read_yaml(spec_root() / "fields.yaml")[kind]


def test_every_field_of_a_request_is_described():
    known = {name for dialect in dialects() for name in asked(dialect)}
    assert known == set(described("request"))


def test_what_a_field_may_hold_is_what_a_check_of_it_takes():
    types = {"flag or number": "boolean", "strings": "string or list of strings", "ids": "list of token ids"}
    types |= {"name": "string", "biases": "object of numbers by id", "words": "list of strings"}
    meant = {"stream_interval", "logprob_start"}  # 0 and -1 stand for something else
    for name, rule in RULES.items():
        stated = described("request")[name]["type"]
        assert stated.startswith(types.get(rule.kind, rule.kind)), name
        assert rule.least is None or name in meant or stated.endswith(f", {rule.least} or more"), name


def test_every_field_of_an_answer_is_described():
    answers = [dialect["answer"][mode] for dialect in dialects() for mode in ("whole", "stream")]
    assert {name for answer in answers for name in recorded(answer)} == set(described("record"))


def test_the_tables_are_those_of_the_data():
    """After a change of a dialect, of its policies or of fields.yaml: python -m docs_build.field_tables."""
    pages = [path.read_text("utf-8") for path in PAGES]
    assert list(map(with_tables, pages)) == pages


def test_every_endpoint_is_shown_whole_and_streamed():
    shown = set()
    for example in examples(CHAPTER.read_text("utf-8")):
        run, _ = read_run(example.exchanges, DialectResolver(example.exchanges), "example")
        shown |= {(stream.dialect, stream.asked.stream) for stream in run.streams if stream.answered}
    every = {(dialect["name"], streamed) for dialect in dialects() for streamed in (False, True)}
    assert every - shown == WITHOUT_RECORDING


def test_the_examples_of_the_schemas_are_answers_that_the_chapter_shows():
    shown = [
        event.data
        for example in examples(CHAPTER.read_text("utf-8"))
        for stream in read_run(example.exchanges, DialectResolver(example.exchanges), "example")[0].streams
        for event in stream.events
    ]
    without = {name for name, _ in WITHOUT_RECORDING}
    for dialect in (item for item in dialects() if item["name"] not in without):
        for mode in ("whole", "stream"):
            assert all(item in shown for item in load_schema(dialect["schemas"][mode])["examples"])
