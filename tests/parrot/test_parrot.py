"""The parrot's law and its checkpoint: what is said, with which logprobs, the same each time."""

from __future__ import annotations

import json
import math
from hashlib import sha256
from pathlib import Path

import pytest
import tokenizers
from click.testing import Result
from typer.testing import CliRunner

from tokenwire.cli import app
from tokenwire.parrot.law import GROUP, Parrot, bias
from tokenwire.parrot.vocabulary import MARKERS, SIZE, Vocabulary, tokenizer_files
from tokenwire_parrot.checkpoint import write_parrot
from tokenwire_parrot.weights import attention_biases

SMALL = Parrot(SIZE, 64)


def test_the_lags_reach_from_one_token_to_the_distance() -> None:
    assert Parrot(SIZE).lags == (1, 16, 64, 256, 1024)
    assert Parrot(SIZE, 320).lags == (1, 20, 80, 320)
    assert [SMALL.lag(position) for position in (1, 15, 16, 63, 64, 1000)] == [1, 1, 16, 16, 64, 64]


def test_a_prompt_as_long_as_a_lag_is_said_again() -> None:
    prompt = tuple(range(100, 116))
    assert SMALL.answer(prompt, 48) == 3 * prompt
    assert Parrot(SIZE).answer(tuple(range(256)), 300) == (*range(256), *range(44))
    assert SMALL.answer((7, 8, 9), 3) == (9, 9, 9)


@pytest.mark.parametrize("leader", [0, 31, 32, 400, SIZE - 1])
def test_the_id_that_is_said_leads_and_its_group_follows_in_order(leader: int) -> None:
    top = SMALL.top(leader, GROUP)
    group = leader // GROUP * GROUP
    assert [token for token, _ in top] == [group + (leader + place) % GROUP for place in range(GROUP)]
    assert top[0][1] - top[1][1] > 3.5
    assert math.fsum(math.exp(logprob) for _, logprob in top) == pytest.approx(1, abs=1e-9)
    every = [math.exp(SMALL.logprob(leader, token)) for token in range(SIZE)]
    assert math.fsum(every) == pytest.approx(1, abs=1e-8)


def test_ids_have_logprobs_of_their_own() -> None:
    logprobs = {round(SMALL.logprob(token, token), 5) for token in range(SIZE)}
    assert len(logprobs) > 200
    assert {bias(token) * 32 for token in range(SIZE)} == set(range(16))


def test_a_last_group_may_be_incomplete() -> None:
    odd = Parrot(70, 64)
    assert [token for token, _ in odd.top(65, 9)] == [65, 66, 67, 68, 69, 64]


@pytest.mark.parametrize("distance", [16, 64, 320, 1000, 2048])
def test_attention_is_found_for_distances_of_all_kinds(distance: int) -> None:
    query, key = attention_biases(Parrot(SIZE, distance).lags, 2 * distance, 64)
    assert len(query) == len(key) == 64
    assert max(abs(query)) < 64, "scores stay within float16"


def test_the_same_bytes_come_every_time(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_parrot(tmp_path / name, distance=64)
    first, other = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("one", "other")
    )
    assert first == other
    settings = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert first.keys() == {"model.safetensors", *settings}
    assert "auto_map" not in json.loads(first["config.json"])
    pinned = sha256(first["model.safetensors"] + first["tokenizer.json"]).hexdigest()
    assert pinned == "a74f4801c3231022f402056984bbfea037ec0f263fe1392378ef35a77cbd59f7", "on every machine"


@pytest.mark.parametrize("kind", Vocabulary)
def test_vocabularies_keep_text_and_split_what_they_should(kind: Vocabulary) -> None:
    document = tokenizer_files(kind, 4096).files["tokenizer.json"]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    assert tokenizer.get_vocab_size() == SIZE
    for text in ("The parrot says\n\nit again.", " 漢字かな😀👩‍💻🦖é ж\t", "\u0000\ufffd"):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert len(tokenizer.encode("parrot says again").ids) < 8
    assert {len(tokenizer.encode(letter).ids) for letter in "é文漢😀🦖🏽ไ"} >= {1, 3}
    whole = [len(tokenizer.encode(marker).ids) == 1 for marker in MARKERS]
    assert whole == [kind is not Vocabulary.SPLIT_MARKERS] * len(MARKERS)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{}", "lacks model.vocab or added_tokens"),
        ('{"model": {"vocab": {}}}', "lacks model.vocab or added_tokens"),
        ('{"model": 3, "added_tokens": 7}', "lacks model.vocab or added_tokens"),
        ('{"model": {"vocab": {"a": "b"}}, "added_tokens": []}', "lacks model.vocab or added_tokens"),
        ('{"model"', "is not JSON"),
        ("[]", "lacks model.vocab or added_tokens"),
    ],
)
def test_a_file_that_is_no_fast_tokenizer_is_refused_by_its_name(
    document: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text(document, "utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "a"}', "utf-8")
    with pytest.raises(ValueError, match=rf"tokenizer\.json {words}"):
        write_parrot(tmp_path / "parrot", distance=64, tokenizer=tmp_path)


@pytest.mark.parametrize("settings", ["[]", '{"eos_token": {}}', '{"eos_token": ["a"]}', '{"eos_token": 7}'])
def test_settings_that_name_no_end_are_refused(settings: str, tmp_path: Path) -> None:
    document = '{"model": {"vocab": {"a": 0}}, "added_tokens": []}'
    (tmp_path / "tokenizer.json").write_text(document, "utf-8")
    (tmp_path / "tokenizer_config.json").write_text(settings, "utf-8")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json has no eos_token"):
        write_parrot(tmp_path / "parrot", distance=64, tokenizer=tmp_path)


def test_a_tokenizer_of_the_user_decides_the_size(tmp_path: Path) -> None:
    mine = Path(__file__).parents[2] / "fixtures" / "models" / "tiny-llama"
    law = write_parrot(tmp_path / "parrot", distance=64, tokenizer=mine)
    config = json.loads((tmp_path / "parrot" / "config.json").read_text())
    assert law.vocab_size == config["vocab_size"] == 1020
    assert config["eos_token_id"] == json.loads((mine / "config.json").read_text())["eos_token_id"]
    assert (tmp_path / "parrot" / "tokenizer.json").read_bytes() == (mine / "tokenizer.json").read_bytes()


def test_the_command_writes_it_and_tells_what_to_do(tmp_path: Path) -> None:
    def run(*words: str) -> Result:
        return CliRunner().invoke(app, ["parrot", *words])

    ran = run(str(tmp_path / "parrot"), "--distance", "64")
    assert ran.exit_code == 0, ran.output
    assert "a parrot with 768 ids. Ids repeat at the distance 1, 16, 64." in ran.output
    assert json.loads((tmp_path / "parrot" / "config.json").read_text())["vocab_size"] == SIZE
    again = run(str(tmp_path / "parrot"))
    assert again.exit_code == 2
    assert "is not an empty folder" in again.output
    nothing = run(str(tmp_path / "other"), "--tokenizer", "nowhere")
    assert nothing.exit_code == 2
    assert "nowhere/tokenizer.json does not exist" in nothing.output
    assert (
        "--head-size is '96'; it must be 64 or 128"
        in run(str(tmp_path / "other"), "--head-size", "96").output
    )
