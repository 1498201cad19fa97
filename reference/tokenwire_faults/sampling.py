"""Faults in sampling: what a request says of it, and is dropped on the way."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from tokenwire_faults.answer_shape import choices_of
from tokenwire_faults.catalogue import WHOLE, fault
from tokenwire_faults.fault import Fault, Json


class _Drops(Fault):
    """Takes some sampling parameters out of the body, wherever the route has them."""

    names: Iterable[str] = ()

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        holders = body.get("sampling_params", body)
        for holder in holders if isinstance(holders, list) else [holders]:
            for name in self.names if isinstance(holder, dict) else ():
                holder.pop(name, None)
        return body


@fault("logit-bias-dropped", "X25", upstream=("Continuum-AI-Corp/OrcaRouter-Lite issue #126",))
class LogitBiasDropped(_Drops):
    """A gateway's own type for sampling parameters has no logit_bias, and drops it."""

    names = ("logit_bias",)


@fault("least-tokens-dropped", "X25", upstream=("NVIDIA/TensorRT-LLM issue #10824",))
class LeastTokensDropped(_Drops):
    """min_new_tokens is dropped: a stop id ends the choice before."""

    names = ("min_new_tokens", "min_tokens")


@fault(
    "frequency-penalty-dropped",
    "X25",
    upstream=("Trans-N-ai/swama issue #118", "raullenchai/Rapid-MLX PR #357"),
)
class FrequencyPenaltyDropped(_Drops):
    """frequency_penalty is dropped, and loops go on."""

    names = ("frequency_penalty",)


@fault("seed-ignored", "X25", upstream=("paiml/aprender PR #2102", "areal-project/AReaL PR #1524"))
class SeedIgnored(_Drops):
    """The seed is taken, and heeded only when the server was started in another way."""

    names = ("sampling_seed", "seed")


@fault(
    "truncation-dropped",
    "X25",
    upstream=("raullenchai/Rapid-MLX PR #357", "huggingface/text-generation-inference issue #1794"),
)
class TruncationDropped(_Drops):
    """top_k, top_p and min_p are dropped: the tail of the distribution is sampled from."""

    names = ("top_k", "top_p", "min_p")


@fault("temperature-ignored", "X25", upstream=("pegainfer-project/pegainfer issue #237",))
class TemperatureIgnored(Fault):
    """Every request is answered greedily."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        holders = body.get("sampling_params", body)
        for holder in holders if isinstance(holders, list) else [holders]:
            if isinstance(holder, dict) and type(holder.get("temperature")) in {int, float}:
                holder["temperature"] = min(holder["temperature"], 0)
        return body


@fault("samples-are-copies", "X19", upstream=("Blaizzy/mlx-vlm issue #1818",), shows_in=(WHOLE,))
class SamplesAreCopies(Fault):
    """The first sample is generated, and the others are copies of it under their own indices and ids."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        choices = choices_of(answer)
        prompts = self.request.get("input_ids", self.request.get("prompt"))
        batch = isinstance(prompts, list) and prompts and isinstance(prompts[0], list)
        for choice in () if batch else choices[1:]:
            own = {"index": choice["index"]} if "index" in choice else {}
            info = choice.get("meta_info")
            choice.clear()
            choice.update(deepcopy(choices[0]) | own)
            if info:
                choice["meta_info"]["id"] = info["id"]
        return status, answer
