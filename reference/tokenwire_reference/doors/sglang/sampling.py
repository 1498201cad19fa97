"""SGLang's sampling parameters: `ignore_eos` also ignores stop ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenwire_reference.core.request import SamplingParams
from tokenwire_reference.doors.sampling_fields import read_sampling_params
from tokenwire_reference.doors.served import Served
from tokenwire_reference.extras.constraints import PLAIN, Channelled


def read_sampling(given: Mapping[str, Any], served: Served, channelled: Channelled = PLAIN) -> SamplingParams:
    """Sampling parameters from their native names. Raises RefusalError for values that cannot be used."""
    fields = {**given, "ignore_stop_token_ids": given.get("ignore_eos")}
    return read_sampling_params(fields, served, channelled)
