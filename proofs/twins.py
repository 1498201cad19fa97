"""Twins: compare pairs of deployments, with the same model or with different models.

The models are small and random, with a seed. Both sides serve their model in bfloat16, or one of them or both
in float32. If the sides differ in the weights, the template, the end tokens or the tokenizer, `tokenwire
twin` must never report that they are the same. If only the kernel adds in another order, or if the sides do
not differ, it must always report this. A kernel that rounds at other places may be undecided, but must never
count as another model.

    python -m proofs.twins                               three seeds of every pair, served by the reference
    python -m proofs.twins --seeds 0 1 --pair int8 --tokens 12000
    python -m proofs.twins --inside --seeds 0 1 2 3      compare only the numbers, without servers

Exit status: 0 if every outcome is allowed for its pair, 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proofs.twinning.inside import texts_of
from proofs.twinning.models import CHANGES, write_model
from tokenwire.asking.planning import planned
from tokenwire.local_server import free_port
from tokenwire.settings import Settings
from tokenwire_twin.started import PORT, Start, started
from tokenwire_twin.twin import TwinReport, TwinSide, TwinTally, twin_report
from tokenwire_twin.twin_asking import ask_twins
from tokenwire_twin.twin_numbers import Interval, Outcome

SAME = frozenset({Outcome.SAME, Outcome.NOISE})
OTHER = frozenset({Outcome.OTHER, Outcome.AROUND})
NEVER_SAME = OTHER | {Outcome.UNDECIDED}


@dataclass(frozen=True)
class Pair:
    """The difference between the models of side A and side B, and the allowed outcomes."""

    change: str
    may: frozenset[Outcome]
    kernel: str = "plain"
    dtypes: tuple[str, str] = ("bfloat16", "bfloat16")


_FLOATS = ("float32", "float32")
PAIRS = {
    "same": Pair("as it is", SAME),
    "wide": Pair("as it is", SAME, "wide"),
    # This kernel rounds at more places, and its lasting difference is almost as large as that of other
    # weights.
    "halves": Pair("as it is", SAME | {Outcome.UNDECIDED}, "halves"),
    "two types": Pair("as it is", SAME, dtypes=("float32", "bfloat16")),
    "int8": Pair("int8", NEVER_SAME),
    "layer": Pair("layer", NEVER_SAME),
    "rope": Pair("rope", NEVER_SAME),
    "int4": Pair("int4", OTHER),
    "int8, wide": Pair("int8", NEVER_SAME, "wide"),
    "layer, wide": Pair("layer", NEVER_SAME, "wide"),
    "rope, wide": Pair("rope", NEVER_SAME, "wide"),
    "int8 in float32": Pair("int8", OTHER, dtypes=_FLOATS),
    "layer in float32": Pair("layer", OTHER, dtypes=_FLOATS),
    "rope in float32": Pair("rope", OTHER, dtypes=_FLOATS),
    "template": Pair("template", OTHER),
    "ends": Pair("ends", OTHER),
    "tokenizer": Pair("tokenizer", OTHER),
}


def served(model: Path, dtype: str, kernel: str = "plain") -> AbstractContextManager[str]:
    """Serve a model as long as this context is open, and yield its URL. Raises UsageError if it
    does not start.
    """
    command = (sys.executable, "-m", "proofs.twinning.kernels", kernel, "serve", "--port", PORT)
    return started(
        Start(shlex.join((*command, "--model", str(model), "--dtype", dtype)), "/health"), free_port()
    )


def compared(urls: Sequence[str], tokens: int) -> TwinReport:
    """Compare two servers."""
    plans = tuple(planned(Settings(target=url)) for url in urls)
    return twin_report(asyncio.run(ask_twins((plans[0], plans[1]), tokens)))


def measured(pair: Pair, seed: int, tokens: int) -> TwinReport:
    """Create both models of a pair, serve them, and compare them."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        first, other = _models(Path(folder), pair, seed)
        urls = [
            servers.enter_context(served(first, pair.dtypes[0])),
            servers.enter_context(served(other, pair.dtypes[1], pair.kernel)),
        ]
        return compared(urls, tokens)


def measured_inside(pair: Pair, seed: int, tokens: int) -> TwinReport:
    """Create both models of a pair, and compare their scores for texts in this process."""
    with tempfile.TemporaryDirectory() as folder:
        models = _models(Path(folder), pair, seed)
        texts = texts_of(models, pair.dtypes, ("plain", pair.kernel), tokens, seed)
    sides = tuple(TwinSide("in this process", name, "") for name in ("A", "B"))
    return twin_report(TwinTally((sides[0], sides[1]), tuple(texts), 1, 1, (0, 0), ()))


def _models(folder: Path, pair: Pair, seed: int) -> tuple[Path, Path]:
    return write_model(folder / "a", seed), write_model(folder / "b", seed, CHANGES[pair.change])


def numbers_of(report: TwinReport) -> dict[str, Any]:
    """Return the numbers that decide a comparison."""
    share = report.share or Interval(0.0, 0.0, 0.0)
    return {
        "outcome": report.outcome,
        "doubt": report.doubt,
        "apart": round(report.apart.mean, 5),
        "limit": round(report.limit, 5),
        "lasting": round(report.lasting.mean, 5) if report.lasting else None,
        "share": [round(number, 2) for number in (share.mean, share.low, share.high)],
        "steps": [round(side.step, 4) for side in report.noise],
        "parts": {part.name: f"{part.differing} of {part.compared}" for part in report.parts},
        "tokens": report.tokens,
        "told_within": report.told_within,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    parser.add_argument("--pair", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--inside", action="store_true", help="compare only the numbers, without servers")
    options = parser.parse_args(arguments)
    wrong = 0
    for name in options.pair:
        pair, seen = PAIRS[name], Counter[str]()
        if options.inside and CHANGES[pair.change].of_files is not None:
            continue
        for seed in options.seeds:
            report = (measured_inside if options.inside else measured)(pair, seed, options.tokens)
            seen[report.outcome] += 1
            wrong += report.outcome not in pair.may
            print(json.dumps({"pair": name, "seed": seed, **numbers_of(report)}), flush=True)
        print(f"{name}: {dict(seen)}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
