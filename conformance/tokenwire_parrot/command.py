"""`tokenwire parrot`: write a model that repeats the text of its prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokenwire.commands.command import command, empty_folder, usage_errors
from tokenwire.parrot.law import DISTANCE, LEAST_DISTANCE
from tokenwire.parrot.vocabulary import Vocabulary
from tokenwire_parrot.checkpoint import write_parrot


def _parrot(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the checkpoint.")],
    *,
    distance: Annotated[
        int,
        typer.Option(
            metavar="T",
            min=LEAST_DISTANCE,
            max=2**20,
            help="Length of the longest script, in ids. A power of two.",
        ),
    ] = DISTANCE,
    head_size: Annotated[str, typer.Option(metavar="64|128", help="Size of an attention head.")] = "64",
    vocabulary: Annotated[Vocabulary, typer.Option(help="Kind of vocabulary.")] = Vocabulary.BYTE_LEVEL,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Use the tokenizer of the model in DIR instead.")
    ] = None,
    gguf: Annotated[bool, typer.Option("--gguf", help="Also write parrot.gguf for llama.cpp.")] = False,
) -> None:
    """Write a small model that repeats its prompt, so that the right answer is always known.

    It is a Qwen2 or Llama model and needs no remote code. Each token repeats the token T positions before it;
    in texts shorter than T, the token T/4 positions before it, and so on. Needs the extra `parrot`.
    """
    empty_folder(folder, "DIR")
    if head_size not in {"64", "128"}:
        raise typer.BadParameter(f"--head-size is {head_size!r}; it must be 64 or 128")
    try:
        with usage_errors(ValueError, OSError):
            law = write_parrot(
                folder,
                distance=distance,
                head_size=int(head_size),
                vocabulary=vocabulary,
                tokenizer=tokenizer,
                gguf=gguf,
            )
    except ImportError as error:
        needed = "--gguf needs a package: pip install gguf"
        if error.name == "numpy":
            needed = "this needs the extra `parrot`: pip install numpy"
        raise typer.BadParameter(needed) from error
    typer.echo(
        f"{folder} contains a parrot with {law.vocab_size} ids. Ids repeat at the distance "
        f"{', '.join(map(str, law.lags))}. Next: serve it, and run tokenwire check --target URL"
    )


app = command(
    _parrot,
    "tokenwire parrot parrot",
    "tokenwire parrot parrot-long --distance 4096",
    "tokenwire parrot parrot-mine --tokenizer models/mine",
    "tokenwire parrot parrot-llama-cpp --gguf",
)
