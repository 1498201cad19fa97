"""Faults in slicing: how much of ids, text and every series an emission carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tokenwire_faults.catalogue import CUMULATIVE, INCREMENTAL, STREAMED, fault
from tokenwire_faults.fault import Fault
from tokenwire_reference.core.request import OWN_SERIES
from tokenwire_reference.doors.request_manager import Emission, Reader

Series = Mapping[str, Sequence[Any]]


def _customized(series: Series) -> Series:
    return {name: values for name, values in series.items() if name not in OWN_SERIES}


def _logprobs(series: Series) -> Series:
    return {name: values for name, values in series.items() if name in OWN_SERIES}


def _all(reader: Reader, emission: Emission) -> Series:
    """Every series of a record from its beginning to where an emission ends."""
    return {name: values[: emission.completion_tokens] for name, values in reader.request.series.items()}


@fault(
    "customized-info-unsliced",
    "X04",
    upstream=("sgl-project/sglang PR #27205",),
    shows_in=(INCREMENTAL,),
)
class CustomizedInfoUnsliced(Fault):
    """Every incremental event carries customized_info of all tokens so far."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        whole = _customized(_all(reader, emission))
        return replace(emission, series={**emission.series, **whole})


@fault(
    "logprobs-unsliced",
    "X04",
    upstream=("sgl-project/sglang PR #21583", "NVIDIA/TensorRT-LLM PR #8785"),
    shows_in=(INCREMENTAL,),
)
class LogprobsUnsliced(Fault):
    """output_ids are incremental, all logprob lists stay cumulative."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        whole = _logprobs(_all(reader, emission))
        return replace(emission, series={**emission.series, **whole})


@fault(
    "ids-unsliced",
    "X04",
    upstream=("ai-dynamo/dynamo PR #12249",),
    shows_in=(INCREMENTAL,),
)
class IdsUnsliced(Fault):
    """A sidecar passes cumulative ids on as if they were new: the client has 1 + 2 + 3 + … of them."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        return replace(emission, output_ids=reader.request.output_ids[: emission.completion_tokens])


@fault(
    "text-unsliced",
    "X04",
    upstream=("sgl-project/sglang PR #21037",),
    shows_in=(INCREMENTAL,),
)
class TextUnsliced(Fault):
    """The text stays cumulative in a stream of incremental ids."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        return replace(emission, text=reader.text)


@fault(
    "text-sliced-twice",
    "X05",
    upstream=("sgl-project/sglang issue #22510", "sgl-project/sglang PR #30187"),
    shows_in=(INCREMENTAL,),
)
class TextSlicedTwice(Fault):
    """A handler slices text that is already incremental by what it has sent: 'Helloeagesg'."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        return replace(emission, text=emission.text[reader.taken_text :])


@fault(
    "logprobs-sliced-twice",
    "X05",
    upstream=("ai-dynamo/dynamo PR #13996",),
    shows_in=(INCREMENTAL,),
)
class LogprobsSlicedTwice(Fault):
    """A proxy takes incremental logprobs for cumulative ones: after the first events most are gone."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        cut = {name: values[reader.taken_ids :] for name, values in _logprobs(emission.series).items()}
        return replace(emission, series={**emission.series, **cut})


@fault(
    "one-cursor-for-all-choices",
    "X05",
    upstream=("ai-dynamo/dynamo PR #8745",),
    shows_in=(INCREMENTAL,),
)
class OneCursorForAllChoices(Fault):
    """The ids of a choice are sliced by what was sent of any choice."""

    cursor = 0

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        start, self.cursor = self.cursor, emission.completion_tokens
        return replace(emission, output_ids=reader.request.output_ids[start : self.cursor])


@fault(
    "one-logprob-for-each-event",
    "X06",
    upstream=("raullenchai/Rapid-MLX issue #220", "sgl-project/sglang issue #10660"),
    shows_in=(INCREMENTAL,),
)
class OneLogprobForEachEvent(Fault):
    """A consumer that expects one token for each event sends only the last one's logprobs."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        last = {name: values[-1:] for name, values in _logprobs(emission.series).items()}
        return replace(emission, series={**emission.series, **last})


@fault(
    "ids-sliced-in-cumulative",
    "X04",
    upstream=("sgl-project/sglang PR #21037",),
    shows_in=(CUMULATIVE,),
)
class IdsSlicedInCumulative(Fault):
    """Draining a backlog makes the ids of cumulative streams incremental; text and logprobs stay."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        return replace(emission, output_ids=emission.output_ids[reader.taken_ids :])


@fault(
    "oldest-ids-dropped",
    "X04",
    shows_in=(CUMULATIVE,),
)
class OldestIdsDropped(Fault):
    """A buffer of eight ids stands behind a cumulative stream: one more pushes out the oldest."""

    kept = 8

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        return replace(emission, output_ids=emission.output_ids[-self.kept :])


@fault(
    "text-sliced-in-cumulative",
    "X04",
    upstream=("sgl-project/sglang PR #21037", "THUDM/slime PR #2272"),
    shows_in=(CUMULATIVE,),
)
class TextSlicedInCumulative(Fault):
    """Each event of a cumulative stream carries only its new text."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        return replace(emission, text=emission.text[reader.taken_text :])


@fault(
    "series-sliced-in-cumulative",
    "X04",
    upstream=("NVIDIA/TensorRT-LLM PR #8785", "sgl-project/sglang PR #27205"),
    shows_in=(CUMULATIVE,),
)
class SeriesSlicedInCumulative(Fault):
    """Each event of a cumulative stream carries only the new entries of every series."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        new = {name: values[reader.taken_ids :] for name, values in emission.series.items()}
        return replace(emission, series=new)


@fault(
    "tail-of-the-finish-lost",
    "X02",
    upstream=("ai-dynamo/dynamo PR #3531",),
    shows_in=STREAMED,
)
class TailOfTheFinishLost(Fault):
    """The event that carries the finish is written without the tokens that came with it."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        lost = emission.completion_tokens - reader.taken_ids
        if emission.finish is None or not self.request.get("stream"):
            return emission
        return replace(emission, output_ids=emission.output_ids[: len(emission.output_ids) - lost])
