"""The mirror: says of each token which one it is and where it was sampled.

So a client sees at once when `customized_info` is shifted, lost or mixed up on its way (sgl-project/sglang PR
#27205).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from tokenwire_reference.sampling.sampling import SamplingRow


def mirror(
    logits: Tensor, rows: Sequence[SamplingRow], token_ids: Sequence[int]
) -> Mapping[str, Sequence[int]]:
    """`mirror_token_id`: the id; `mirror_position`: the position whose logits chose it."""
    del logits
    return {"mirror_token_id": list(token_ids), "mirror_position": [row.position for row in rows]}
