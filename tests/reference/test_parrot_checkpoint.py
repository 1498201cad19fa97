"""The parrot's checkpoint in transformers: it says scripts again, with exactly the logprobs of its law."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from tokenwire.parrot.encoding import chat_text
from tokenwire.parrot.law import Parrot
from tokenwire.parrot.vocabulary import Vocabulary, words_of
from tokenwire_parrot.checkpoint import write_parrot

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = 1e-6

Written = Callable[..., tuple[Path, Parrot]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Give `written(kind, head_size, distance)`: a checkpoint, and its law."""
    torch.set_num_threads(1)

    @cache
    def write(
        kind: Vocabulary = Vocabulary.BYTE_LEVEL, head_size: int = 64, distance: int = 64
    ) -> tuple[Path, Parrot]:
        folder = tmp_path_factory.mktemp("parrot")
        return folder, write_parrot(folder, vocabulary=kind, head_size=head_size, distance=distance)

    return write


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)


def logits_of(model: Any, ids: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].double()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("kind", "head_size"), [(Vocabulary.BYTE_LEVEL, 64), (Vocabulary.SENTENCEPIECE, 64)])
def test_every_logprob_is_that_of_the_law(
    written: Written, kind: Vocabulary, head_size: int, dtype: torch.dtype
) -> None:
    folder, law = written(kind, head_size)
    draw = random.Random(20260701)
    ids = [draw.randrange(law.vocab_size) for _ in range(200)]
    logits = logits_of(load(folder, dtype), ids)
    logprobs = torch.log_softmax(logits, -1)
    likeliest = logits.topk(21).indices
    for position in range(len(ids)):
        leader = ids[position + 1 - law.lag(position + 1)]
        top = law.top(leader, 20)
        assert likeliest[position, :20].tolist() == [token for token, _ in top]
        assert logprobs[position, [token for token, _ in top]].tolist() == pytest.approx(
            [logprob for _, logprob in top], abs=TOLERANCE
        )
        assert logits[position, leader] - logits[position, top[1][0]] > 3.5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_far_positions_look_as_exactly(written: Written, dtype: torch.dtype) -> None:
    folder, law = written(distance=1024)
    draw = random.Random(20260702)
    ids = [draw.randrange(law.vocab_size) for _ in range(1300)]
    leaders = logits_of(load(folder, dtype), ids).argmax(-1).tolist()
    assert leaders == [ids[position - law.lag(position)] for position in range(1, len(ids) + 1)]


def test_large_heads_say_the_same(written: Written) -> None:
    folder, law = written(head_size=128)
    config = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).config
    assert config.hidden_size // config.num_attention_heads == 128
    assert config.num_attention_heads % 4 == config.num_key_value_heads % 4 == 0
    ids = list(range(100, 200))
    logits = logits_of(load(folder, torch.bfloat16), ids)
    leader = ids[len(ids) - law.lag(len(ids))]
    assert torch.log_softmax(logits[-1], -1)[leader].item() == pytest.approx(
        law.logprob(leader, leader), abs=TOLERANCE
    )


SCRIPT = "The parrot says:\n\n漢字かな交じり文 😀🦖👩‍💻 é."


@pytest.mark.parametrize("kind", Vocabulary)
def test_a_chat_says_its_script_again_and_ends(written: Written, kind: Vocabulary) -> None:
    folder, _ = written(kind, distance=256)
    model, tokenizer = load(folder), AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def rendered(content: str) -> list[int]:
        messages = [{"role": "user", "content": content}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    script = f"{SCRIPT}{tokenizer.eos_token}"
    before = len(tokenizer.encode("<|im_start|>user\n", add_special_tokens=False))
    fillers = 256 + before - len(rendered(script))
    prompt = rendered(script + "~" * fillers)
    assert len(prompt) == 256 + before
    answer = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=200)[
        0, len(prompt) :
    ].tolist()
    assert answer[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(answer, skip_special_tokens=True) == SCRIPT


@pytest.mark.parametrize("kind", Vocabulary)
def test_the_template_writes_calls_and_results_as_the_suite_reads_them(
    written: Written, kind: Vocabulary
) -> None:
    folder, _ = written(kind, distance=256)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def called(arguments: object, **more: object) -> list[dict[str, object]]:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "tool_calls": [call], **more},
            {"role": "tool", "tool_call_id": "c", "content": "b"},
        ]

    def rendered(messages: list[dict[str, object]]) -> str:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return text

    given = {"city": "Paris", "days": 2}
    written_out = rendered(called(given))
    assert written_out == chat_text(called(json.dumps(given)))
    assert rendered(called(json.dumps(given))) != written_out, "arguments that are text are seen"
    for name in ("reasoning", "reasoning_content"):
        assert "<think>\nhm\n</think>" in rendered(called(given, **{name: "hm"}))


def test_a_long_script_is_said_to_its_end(written: Written) -> None:
    folder, law = written(distance=1024)
    draw = random.Random(20260703)
    script = [*(draw.randrange(4, law.vocab_size) for _ in range(1023)), 0]
    # Each id behind the script follows from those before it: so one pass says what 1,024 steps would.
    logits = load(folder)(torch.tensor([script + script])).logits[0]
    answer = logits[len(script) - 1 : -1].argmax(dim=-1).tolist()
    assert answer == script


@pytest.mark.parametrize("kind", Vocabulary)
def test_an_answer_ends_at_each_id_that_the_law_ends_at(written: Written, kind: Vocabulary) -> None:
    folder, law = written(kind)
    ends = words_of(kind).ends
    assert len(ends) == 2
    ordinary = [token for token in range(5, law.vocab_size) if token not in ends][:63]
    for end in ends:
        prompt = [*ordinary[:40], end, *ordinary[40:]]
        answer = load(folder).generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=60)
        assert answer[0, len(prompt) :].tolist() == [*ordinary[:40], end]


def test_a_gguf_file_holds_the_same_model(tmp_path: Path) -> None:
    """As transformers read it, with nothing of ours: names, shapes, numbers, configuration, tokenizer."""
    write_parrot(tmp_path, distance=64, gguf=True)
    model = load(tmp_path)
    path = tmp_path / "parrot.gguf"
    read = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)
    state = model.state_dict()
    assert state.keys() == read["tensors"].keys()
    assert [name for name in state if not torch.equal(state[name], read["tensors"][name].float())] == []
    config = {name: value for name, value in read["config"].items() if hasattr(model.config, name)}
    assert config["model_type"] == "qwen2"
    assert config["num_attention_heads"] == config["num_key_value_heads"] == 4
    assert config["max_position_embeddings"] == model.config.max_position_embeddings
    assert read["config"]["rope_theta"] == 10.0
    tokenizer, of_file = (
        AutoTokenizer.from_pretrained(tmp_path, gguf_file=name, local_files_only=True)
        for name in (None, path.name)
    )
    text = "The parrot says 漢字 and 😀 again.<|im_end|></think>"
    assert tokenizer.encode(text) == of_file.encode(text)
    assert of_file.eos_token_id == tokenizer.eos_token_id


def test_a_gguf_file_leaves_no_id_to_llama_cpp(tmp_path: Path) -> None:
    """For vocabularies of this kind, it takes id 11 where a file names no begin or end."""
    write_parrot(tmp_path, distance=64, gguf=True)
    fields = gguf.GGUFReader(tmp_path / "parrot.gguf").fields
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    ids = {
        name: int(fields[f"tokenizer.ggml.{name}_token_id"].contents())
        for name in ("bos", "eos", "eot", "padding")
    }
    assert ids == {
        "bos": tokenizer.bos_token_id,
        "eot": tokenizer.convert_tokens_to_ids("<|im_end|>"),
        "eos": tokenizer.eos_token_id,
        "padding": tokenizer.pad_token_id,
    }


def test_a_gguf_file_is_written_of_byte_level_vocabularies_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a GGUF file needs the vocabulary byte-level or split-markers"):
        write_parrot(tmp_path, vocabulary=Vocabulary.SENTENCEPIECE, gguf=True)
