"""Models that are built in memory, without downloads.

`builtin:tiny` is a small seeded random transformer with a byte-level tokenizer and a ChatML template. Its
greedy output is varied, and hardly ever contains a special token. `builtin:tiny-mm` also has tokens for
images; `builtin:tiny-moe` has a mixture of experts. `builtin:tiny-other` is `builtin:tiny` with other
weights. `builtin:parrot` is the model of `tokenwire parrot`: it repeats the text of its prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2MoeConfig,
)

from tokenwire_parrot.checkpoint import write_parrot
from tokenwire_reference.extras.images import IMAGE_TOKENS, PLACEHOLDER

BUILTIN_PREFIX = "builtin:"

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
ENDOFTEXT, IM_START, IM_END, PAD = range(len(SPECIAL_TOKENS))
VOCAB_SIZE = 736

CHATML_TEMPLATE = (
    "{% if tools %}<|im_start|>system\nYou may call tools:"
    "{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>\n"
    '{"name": {{ call["function"]["name"] | tojson }}, '
    '"arguments": {{ call["function"]["arguments"] | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TRAINING_TEXT = (
    "The reference engine answers each request token by token, and the record of a request only ever grows. ",
    "A stream may be cut anywhere: between words, within a word, in the middle of a character. ",
    "What was sent is never changed; what is finished stays finished. ",
    "Every id has one entry in every series. ",
    "system user assistant tool function content message prompt answer question stop length abort ",
    "def step(self) -> list: return [token for token in output_ids if token is not None]\n",
    '{"text": "hello", "output_ids": [1, 2, 3], "meta_info": {"finish_reason": null}}\n',
    "0 1 2 3 4 5 6 7 8 9 10 11 12 16 20 32 64 100 128 256 512 1000 1024 2048 4096 ",
    "Größe, naïve café, señor, žluťoučký kůň, ελληνικά, русский язык, עברית, العربية. ",
    "日本語の文章は一文字ずつ届く。中文的字符由三个字节组成。한국어 문장도 나누어 전달된다。",
    "😀😃😄🎉🎊🚀👍🏽👩‍💻🇯🇵❤️ ",
)
"""The text from which the tokenizer's merges are learned.

Most of its words become whole tokens; CJK and emoji are often split.
"""


def build_builtin(model: str, attention: str) -> tuple[Any, Any]:
    """Return the model and the tokenizer of `builtin:<name>`. Raises ValueError with the known names."""
    builder = _BUILDERS.get(model.removeprefix(BUILTIN_PREFIX))
    if builder is None:
        known = ", ".join(BUILTIN_PREFIX + name for name in sorted(_BUILDERS))
        raise ValueError(f"{model} is not a builtin model; the builtin models are: {known}")
    return builder(attention)


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer: special tokens, 256 bytes, and merges learned from
    `TRAINING_TEXT`.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL_TOKENS[ENDOFTEXT],
        eos_token=SPECIAL_TOKENS[IM_END],
        pad_token=SPECIAL_TOKENS[PAD],
        additional_special_tokens=[SPECIAL_TOKENS[IM_START]],
        chat_template=CHATML_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_parrot(attention: str) -> tuple[Any, Any]:
    """Return the parrot, loaded from its files, in the type of the other builtin models."""
    with TemporaryDirectory() as name:
        write_parrot(Path(name))
        model = AutoModelForCausalLM.from_pretrained(
            name, dtype=torch.float32, attn_implementation=attention, local_files_only=True
        )
        return model, AutoTokenizer.from_pretrained(name, local_files_only=True)


_TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    # The weights are spread widely, so that attention and the layers matter. With a narrow spread, the model
    # repeats one token forever.
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "bos_token_id": ENDOFTEXT,
    "eos_token_id": IM_END,
    "pad_token_id": PAD,
}
_EXPERTS = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
    "num_experts": 8,
    "num_experts_per_tok": 4,
}


def build_tiny(
    attention: str, *, tokens: Sequence[str] = (), moe: bool = False, seed: int = 20260701
) -> tuple[Any, Any]:
    """Return a Qwen2 of two layers and 64 dimensions, with weights drawn from a seed.

    The vocabulary may have more `tokens`. With `moe`, the layers choose four of eight experts for each token.
    """
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens([*tokens], special_tokens=True)
    shape = _TINY | {"vocab_size": len(tokenizer)}
    config = Qwen2MoeConfig(**shape | _EXPERTS) if moe else Qwen2Config(**shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    # Special tokens have rows of zeros and thus a logit of zero, far below the best logit. So they are
    # possible but rare.
    with torch.no_grad():
        model.lm_head.weight[: len(SPECIAL_TOKENS)] = 0.0
        model.lm_head.weight[VOCAB_SIZE:] = 0.0
    return model, tokenizer


build_tiny_mm = partial(build_tiny, tokens=(PLACEHOLDER, *IMAGE_TOKENS))
_BUILDERS: Mapping[str, Callable[[str], tuple[Any, Any]]] = {
    "parrot": build_parrot,
    "tiny": build_tiny,
    "tiny-mm": build_tiny_mm,
    "tiny-other": partial(build_tiny, seed=20260702),
    "tiny-moe": partial(build_tiny, moe=True),
}
"""The builder of each model.

Its argument is the name of the attention implementation; it returns a transformers model and a tokenizer.
"""
