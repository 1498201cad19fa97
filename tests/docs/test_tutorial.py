"""The tutorial prints what it says: its commands are run, in their order, in one folder.

Where the new output is right, `python -m proofs.tutorial` writes it down.
"""

from __future__ import annotations

from proofs.tutorial import MODEL, SERVER_FLAGS, TUTORIAL, comparable, printed, shown

TEXT = TUTORIAL.read_text("utf-8")


def test_the_commands_print_what_the_tutorial_shows(start_reference, tmp_path):
    url = start_reference("--model", MODEL, *SERVER_FLAGS)
    every = shown(TEXT)
    assert len(every) == 5
    for command, output in every:
        assert list(comparable(printed(command, url, tmp_path))) == list(comparable(output)), command
    assert (tmp_path / "tokenwire.toml").exists()


def test_the_server_is_started_as_the_tutorial_says():
    command = TEXT.partition("```sh\ntokenwire-reference serve")[2].partition("```")[0]
    assert command.replace("\\\n", " ").split() == [
        "--model",
        MODEL,
        "--port",
        "30000",
        *SERVER_FLAGS,
    ]


def test_numbers_spaces_and_events_are_not_compared():
    assert list(comparable("at  0.12 s, 4\n  1  0.1 s  data: {}\n\n  curl a\n")) == ["at # s, #"]
    assert list(comparable("FAIL")) != list(comparable("PASS"))
