"""The engine's promises: the record of a request depends on the request alone, and is always whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from engine_requests import GREEDY, PROMPT, SEEDED, ask, neighbours, record, retract, scored
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tokenwire_reference.assembly import make_engine
from tokenwire_reference.core import backends
from tokenwire_reference.core.backends import register_sampler_backend
from tokenwire_reference.core.batch import Batch
from tokenwire_reference.core.engine import Engine, EngineArgs
from tokenwire_reference.core.kv import PageAccountingError
from tokenwire_reference.core.loaded_model import LoadedModel
from tokenwire_reference.core.request import OWN_SERIES, FinishReason, Request
from tokenwire_reference.core.request_extras import EMBEDDING, WANTS_EMBEDDING
from tokenwire_reference.core.sampling import SamplingRow
from tokenwire_reference.loading import load_model

Run = Callable[..., list[Request]]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
class TestBatchInvariance:
    """Equal ids, and equal logprobs to the last bit, whatever else happens."""

    def test_alone_and_in_company(self, tiny: LoadedModel, run_to_end: Run, sampling: dict[str, Any]) -> None:
        (alone,) = run_to_end(make_engine(tiny), scored(new=30, **sampling))
        company = neighbours()
        together = run_to_end(make_engine(tiny), *company[:4], scored(new=30, **sampling), *company[4:])[4]
        assert record(together) == record(alone)

    def test_arriving_late(self, tiny: LoadedModel, run_to_end: Run, sampling: dict[str, Any]) -> None:
        (alone,) = run_to_end(make_engine(tiny), scored(new=30, **sampling))
        engine = make_engine(tiny)
        for request in neighbours():
            engine.add(request)
        for _ in range(4):
            engine.step()
        (late,) = run_to_end(engine, scored(new=30, **sampling))
        assert record(late) == record(alone)

    @pytest.mark.parametrize("chunk", [16, 32, 64])
    def test_whole_and_chunked_prefill(
        self, tiny: LoadedModel, run_to_end: Run, sampling: dict[str, Any], chunk: int
    ) -> None:
        (whole,) = run_to_end(make_engine(tiny), scored(**sampling))
        (chunked,) = run_to_end(make_engine(tiny, EngineArgs(chunked_prefill_size=chunk)), scored(**sampling))
        assert record(chunked) == record(whole)

    def test_cold_and_warm_cache(self, tiny: LoadedModel, run_to_end: Run, sampling: dict[str, Any]) -> None:
        engine = make_engine(tiny)
        cold, warm = (run_to_end(engine, scored(logprob_start_len=70, **sampling))[0] for _ in range(2))
        assert (cold.cached_tokens, warm.cached_tokens, warm.cached_tokens_device) == (0, 64, 64)
        assert record(warm) == record(cold)

    def test_a_second_turn_reuses_what_was_generated(
        self, tiny: LoadedModel, run_to_end: Run, sampling: dict[str, Any]
    ) -> None:
        engine = make_engine(tiny)
        (first,) = run_to_end(engine, ask(new=60, **sampling))
        turn = (*PROMPT, *first.output_ids, 40, 41, 42)
        (warm,) = run_to_end(engine, scored(prompt=turn, logprob_start_len=-1, **sampling))
        (cold,) = run_to_end(make_engine(tiny), scored(prompt=turn, logprob_start_len=-1, **sampling))
        assert warm.cached_tokens == 144
        assert record(warm) == record(cold)

    def test_a_retraction_is_invisible(
        self, tiny: LoadedModel, run_to_end: Run, sampling: dict[str, Any]
    ) -> None:
        (calm,) = run_to_end(make_engine(tiny), scored(**sampling))
        engine = make_engine(tiny, EngineArgs(chunked_prefill_size=32, prefix_caching=False))
        disturbed = scored(**sampling)
        engine.add(disturbed)
        for number in range(9):
            engine.step()
            if number in {1, 6}:
                retract(engine, "r")
        run_to_end(engine)
        assert disturbed.num_retractions == 2
        assert record(disturbed) == record(calm)

    def test_a_retraction_finds_its_own_pages(
        self, tiny: LoadedModel, run_to_end: Run, sampling: dict[str, Any]
    ) -> None:
        (calm,) = run_to_end(make_engine(tiny), scored(new=30, **sampling))
        engine = make_engine(tiny, EngineArgs(chunked_prefill_size=16))
        disturbed = scored(new=30, **sampling)
        engine.add(disturbed)
        while len(disturbed.output_ids) < 20:
            engine.step()
        retract(engine, "r")
        engine.step()
        assert len(disturbed.output_ids) == 21
        run_to_end(engine)
        assert (disturbed.num_retractions, disturbed.cached_tokens) == (1, 0)
        assert record(disturbed) == record(calm)

    def test_continued_from_its_ids(
        self, tiny: LoadedModel, run_to_end: Run, sampling: dict[str, Any]
    ) -> None:
        (whole,) = run_to_end(make_engine(tiny), ask(new=20, **sampling))
        (rest,) = run_to_end(
            make_engine(tiny), ask(prompt=(*PROMPT, *whole.output_ids[:7]), new=13, **sampling)
        )
        assert rest.output_ids == whole.output_ids[7:]


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_traffic_gives_every_request_its_own_record(tiny: LoadedModel, data: st.DataObject) -> None:
    """Requests arrive, are aborted and retracted at random; what each one has is what it has alone."""
    lengths = st.integers(1, 60)
    wanted = [
        scored(
            f"r{i}",
            prompt=range(10, 10 + data.draw(lengths)),
            new=data.draw(st.integers(0, 9)),
            sampling_seed=i,
            temperature=float(i % 2),
            logprob_start_len=data.draw(st.integers(-1, 1)),
        )
        for i in range(data.draw(st.integers(1, 6)))
    ]
    engine = make_engine(
        tiny, EngineArgs(max_running_requests=3, chunked_prefill_size=16, max_total_tokens=320)
    )
    ended: list[Request] = []
    waiting = list(wanted)
    while waiting or not engine.idle:
        if waiting and not data.draw(st.booleans()):
            engine.add(waiting.pop())
        running = [sequence.request.rid for sequence in engine.scheduler.running]
        if running and data.draw(st.integers(0, 5)) == 0:
            disturb = data.draw(st.sampled_from([engine.abort, partial(retract, engine)]))
            disturb(data.draw(st.sampled_from(running)))
        ended.extend(request for request in engine.step() if request.finish is not None)
        engine.check_integrity()
    assert sorted(request.rid for request in ended) == sorted(request.rid for request in wanted)
    for request in ended:
        alone = replace(request, output_ids=[], series={}, prompt_series={}, finish=None)
        solo = make_engine(tiny)
        solo.add(alone)
        while not solo.idle:
            solo.step()
        count = len(request.output_ids)
        assert request.output_ids == alone.output_ids[:count]
        assert request.series == {key: values[:count] for key, values in alone.series.items()}
        for key, values in request.prompt_series.items():
            assert values == alone.prompt_series[key][: len(values)]
        if request.finish != FinishReason("abort", message="Aborted"):
            assert record(request) == record(alone)


def test_reduced_precision_keeps_the_promise(device: str, run_to_end: Run) -> None:
    model = load_model("builtin:tiny", dtype="bfloat16", device=device)
    (alone,) = run_to_end(make_engine(model), scored(new=20))
    engine = make_engine(model, EngineArgs(chunked_prefill_size=32))
    together = run_to_end(engine, *neighbours(5), scored(new=20))[-1]
    assert record(together) == record(alone)
    assert model.dtype == torch.bfloat16


class TestLogprobs:
    def test_they_are_those_of_the_model(self, tiny_qwen2: LoadedModel, run_to_end: Run) -> None:
        request = scored(prompt=range(100, 140), new=8, logprob_start_len=3, token_ids_logprob=(7, 5))
        run_to_end(make_engine(tiny_qwen2, EngineArgs(chunked_prefill_size=16)), request)
        ids = [*request.prompt_token_ids, *request.output_ids]
        module = load_model(tiny_qwen2.name).module
        module.set_attn_implementation("eager")
        with torch.inference_mode():
            # The textbook's side stays on the CPU.
            expected = torch.log_softmax(module(input_ids=torch.tensor([ids])).logits[0].double(), -1)
        tokens = [*request.prompt_series["input_token_logprobs"], *request.series["output_token_logprobs"]]
        tops = [*request.prompt_series["input_top_logprobs"], *request.series["output_top_logprobs"]]
        chosen = [
            *request.prompt_series["input_token_ids_logprobs"],
            *request.series["output_token_ids_logprobs"],
        ]
        assert len(tokens) == len(tops) == len(chosen) == 45
        for position, (token, top, picked) in enumerate(zip(tokens, tops, chosen, strict=True)):
            row = expected[position + 2]
            assert token == [pytest.approx(row[ids[position + 3]].item(), abs=1e-4), ids[position + 3], None]
            values, best = row.topk(3)
            assert [entry[1] for entry in top] == best.tolist()
            assert [entry[0] for entry in top] == pytest.approx(values.tolist(), abs=1e-4)
            assert [entry[1:] for entry in picked] == [[7, None], [5, None]]
            assert [entry[0] for entry in picked] == pytest.approx(row[[7, 5]].tolist(), abs=1e-4)

    @pytest.mark.parametrize(("start", "entries"), [(-1, 0), (0, 85), (50, 35), (84, 1), (85, 0)])
    def test_prompt_logprobs_begin_where_asked(
        self, tiny: LoadedModel, run_to_end: Run, start: int, entries: int
    ) -> None:
        (request,) = run_to_end(make_engine(tiny), scored(logprob_start_len=start))
        assert {key: len(values) for key, values in request.prompt_series.items()} == {
            "input_token_logprobs": entries,
            "input_top_logprobs": entries,
            "input_token_ids_logprobs": entries,
        }
        assert [entry[1] for entry in request.prompt_series["input_token_logprobs"]] == list(
            PROMPT[85 - entries :]
        )

    def test_only_the_first_prompt_token_has_no_logprob(self, tiny: LoadedModel, run_to_end: Run) -> None:
        whole, inside = run_to_end(make_engine(tiny), scored("a"), scored("b", logprob_start_len=50))
        for name, entries in inside.prompt_series.items():
            assert entries == whole.prompt_series[name][50:], name
        assert whole.prompt_series["input_token_logprobs"][0] == [None, PROMPT[0], None]
        assert whole.prompt_series["input_top_logprobs"][0] is None

    def test_families_are_there_only_when_asked(self, tiny: LoadedModel, run_to_end: Run) -> None:
        engine = make_engine(tiny)
        plain, only, top = run_to_end(
            engine,
            ask("a", top_logprobs_num=2, token_ids_logprob=(1,)),
            ask("b", return_logprob=True),
            ask("c", return_logprob=True, top_logprobs_num=1),
        )
        assert (plain.series, plain.prompt_series) == ({}, {})
        assert (set(only.series), set(only.prompt_series)) == (
            {"output_token_logprobs"},
            {"input_token_logprobs"},
        )
        assert set(top.series) == {"output_token_logprobs", "output_top_logprobs"}

    def test_they_speak_of_what_was_sampled_from(self, tiny: LoadedModel, run_to_end: Run) -> None:
        engine = make_engine(tiny)
        at_one, at_half, biased = run_to_end(
            engine,
            scored("one", new=1, temperature=1.0, top_k=1),
            scored("half", new=1, temperature=0.5, top_k=1),
            scored("biased", new=1, logit_bias={5: 1000.0}),
        )
        first, second = (request.series["output_top_logprobs"][0] for request in (at_one, at_half))
        assert second[0][0] - second[1][0] == pytest.approx(2 * (first[0][0] - first[1][0]), rel=1e-4)
        assert biased.series["output_token_logprobs"] == [[0.0, 5, None]]
        assert at_one.prompt_series == at_half.prompt_series == biased.prompt_series


class TestEnds:
    def test_budget_zero_runs_the_prompt_and_says_nothing(self, tiny: LoadedModel, run_to_end: Run) -> None:
        engine = make_engine(tiny, EngineArgs(sampling_backend="mirror"))
        (request,) = run_to_end(engine, scored(new=0))
        assert request.finish == FinishReason("length", length=0)
        assert request.output_ids == []
        assert not any(request.series.values())
        assert len(request.prompt_series["input_token_logprobs"]) == len(PROMPT)
        (full,) = run_to_end(engine, scored(new=1))
        assert full.prompt_series == request.prompt_series

    def test_no_budget_fills_the_context(self, tiny_qwen2: LoadedModel, run_to_end: Run) -> None:
        (request,) = run_to_end(make_engine(tiny_qwen2), ask(new=None, ignore_eos=True))
        assert request.finish == FinishReason("length", length=512 - len(PROMPT))
        (small,) = run_to_end(
            make_engine(tiny_qwen2, EngineArgs(max_total_tokens=128)), ask(new=None, ignore_eos=True)
        )
        assert len(small.output_ids) == 128 - len(PROMPT)

    def test_end_of_sequence_counts_and_waits_for_min_new_tokens(
        self, tiny: LoadedModel, run_to_end: Run
    ) -> None:
        (eos,) = tiny.eos_token_ids
        (request,) = run_to_end(make_engine(tiny), scored(logit_bias={eos: 1000.0}, min_new_tokens=3))
        assert request.finish == FinishReason("stop", matched=eos)
        assert len(request.output_ids) == 4
        assert request.output_ids.index(eos) == 3
        assert [entry[1] for entry in request.series["output_token_logprobs"]] == request.output_ids

    def test_stop_token_and_stop_string_end_with_their_ids(self, tiny: LoadedModel, run_to_end: Run) -> None:
        engine = make_engine(tiny)
        (free,) = run_to_end(engine, ask(new=20))
        stop_id = free.output_ids[9]
        (by_id,) = run_to_end(engine, ask(new=20, stop_token_ids=(stop_id,)))
        end = free.output_ids.index(stop_id) + 1
        assert (by_id.output_ids, by_id.finish) == (
            free.output_ids[:end],
            FinishReason("stop", matched=stop_id),
        )
        text = tiny.tokenizer.decode(free.output_ids)
        stop = next(text[i : i + 5] for i in range(5, len(text)) if "\ufffd" not in text[i : i + 5])
        (by_text,) = run_to_end(engine, ask(new=20, stop=(stop,)))
        assert by_text.finish == FinishReason("stop", matched=stop)
        count = len(by_text.output_ids)
        assert by_text.output_ids == free.output_ids[:count]
        assert stop in tiny.tokenizer.decode(free.output_ids[:count])
        assert stop not in tiny.tokenizer.decode(free.output_ids[: count - 1])

    def test_a_stream_is_held_back_while_a_stop_string_may_come(
        self, tiny: LoadedModel, run_to_end: Run
    ) -> None:
        engine = make_engine(tiny)
        (free,) = run_to_end(engine, ask(new=8))
        texts = [tiny.tokenizer.decode(free.output_ids[:end]).rstrip("\ufffd") for end in range(1, 9)]
        stop = texts[4][-3:] + " and never on"
        asked = ask(new=8, stop=(stop,), stream=True)
        engine.add(asked)
        held = []
        while asked.finish is None:
            engine.step()
            held.append(asked.held_back)
        assert held == [any(text.endswith(stop[:end]) for end in range(1, len(stop))) for text in texts]
        assert True in held
        (whole,) = run_to_end(engine, ask(new=8, stop=(stop,)))
        assert not whole.held_back

    def test_abort_gives_what_was_generated(self, tiny: LoadedModel, run_to_end: Run) -> None:
        engine = make_engine(tiny, EngineArgs(max_running_requests=2, chunked_prefill_size=32))
        running, prefilling, queued = ask("running", PROMPT[:20], 20), ask("prefilling"), scored("queued")
        (free,) = run_to_end(make_engine(tiny), ask("free", PROMPT[:20], 20))
        engine.add(running)
        engine.step()
        engine.add(prefilling)
        engine.add(queued)
        assert engine.step() == [running]
        for rid in ("running", "prefilling", "queued", "unknown"):
            engine.abort(rid)
        assert not engine.idle
        assert engine.step() == [running, prefilling, queued]
        assert engine.idle
        assert engine.step() == []
        engine.check_integrity()
        assert running.output_ids == free.output_ids[:2]
        assert running.finish == prefilling.finish == FinishReason("abort", message="Aborted")
        assert queued.finish == FinishReason("abort", message="Abort in waiting queue")
        assert (prefilling.output_ids, queued.output_ids) == ([], [])
        assert queued.series == {
            f"output_{f}": [] for f in ("token_logprobs", "top_logprobs", "token_ids_logprobs")
        }
        assert run_to_end(engine, ask("running"))[0].finish == FinishReason("length", length=12)

    def test_a_step_returns_who_got_a_token(self, tiny: LoadedModel) -> None:
        engine = make_engine(tiny, EngineArgs(chunked_prefill_size=32))
        request = ask(new=2)
        engine.add(request)
        assert [engine.step() for _ in range(5)] == [[], [], [request], [request], []]
        assert request.finish is not None


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"prompt": ()}, "the prompt is empty"),
            ({"prompt": (5, 736)}, r"out-of-vocabulary token id 736; valid range is \[0, 736\)"),
            ({"prompt": (5, -1)}, "prompt_token_ids contains out-of-vocabulary token id -1"),
            ({"new": 4012}, "85 prompt tokens and max_new_tokens 4012 exceed the context length of 4096"),
            ({"prompt": (7,) * 4097, "new": None}, "4097 prompt tokens and max_new_tokens None exceed"),
            ({"new": 1000}, "may need 1084 positions of the KV cache, which holds 512"),
            ({"logprob_start_len": 86}, "logprob_start_len is 86, and the prompt has 85 tokens"),
            ({"logit_bias": {800: 1.0}}, "logit_bias contains out-of-vocabulary token id 800"),
            ({"stop_token_ids": (-5,)}, "stop_token_ids contains out-of-vocabulary token id -5"),
            ({"token_ids_logprob": (99999,)}, "token_ids_logprob contains out-of-vocabulary token id 99999"),
            ({"stop_regex": ("(",)}, "is not a regular expression"),
        ],
    )
    def test_what_can_never_run(self, tiny: LoadedModel, options: dict[str, Any], message: str) -> None:
        engine = make_engine(tiny, EngineArgs(max_total_tokens=512))
        request = ask(**options)
        with pytest.raises(ValueError, match=message):
            engine.add(request)
        assert engine.idle
        assert (request.series, request.prompt_series) == ({}, {})

    def test_an_id_in_use(self, tiny: LoadedModel, run_to_end: Run) -> None:
        engine = make_engine(tiny)
        first = ask()
        engine.add(first)
        with pytest.raises(ValueError, match="request id 'r' is in use"):
            engine.add(ask())
        run_to_end(engine)
        assert len(first.output_ids) == 12

    def test_stop_strings_without_a_tokenizer(self, run_to_end: Run) -> None:
        engine = make_engine(load_model("builtin:tiny", tokenizer=False))
        with pytest.raises(ValueError, match="use stop_token_ids"):
            engine.add(ask(stop=("x",)))
        assert len(run_to_end(engine, ask())[0].output_ids) == 12


class TestSeeds:
    def test_a_seed_is_drawn_and_told(self, tiny: LoadedModel, run_to_end: Run) -> None:
        first, second = run_to_end(make_engine(tiny), ask("a", temperature=1.0), ask("b", temperature=1.0))
        assert first.seed != second.seed
        assert first.output_ids != second.output_ids
        (again,) = run_to_end(make_engine(tiny), ask("c", temperature=1.0, sampling_seed=first.seed))
        assert again.output_ids == first.output_ids

    def test_a_random_seed_fixes_the_seeds_that_are_drawn(self, tiny: LoadedModel, run_to_end: Run) -> None:
        drawn = [
            run_to_end(make_engine(tiny, EngineArgs(random_seed=seed)), ask())[0].seed for seed in (3, 3, 4)
        ]
        assert drawn[0] == drawn[1] != drawn[2]


class TestPenalties:
    SAMPLING: ClassVar[dict[str, float]] = {
        "frequency_penalty": 1.5,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.2,
    }

    def test_they_count_what_came_before_a_retraction(self, tiny: LoadedModel, run_to_end: Run) -> None:
        (calm,) = run_to_end(make_engine(tiny), scored(**self.SAMPLING))
        engine = make_engine(tiny, EngineArgs(speculative_num_draft_tokens=2))
        disturbed = scored(**self.SAMPLING)
        engine.add(disturbed)
        while len(disturbed.output_ids) < 6:
            engine.step()
        retract(engine, "r")
        run_to_end(engine)
        assert record(disturbed) == record(calm)

    def test_they_count_the_drafts_before(self, tiny: LoadedModel, run_to_end: Run) -> None:
        repetitive = {"frequency_penalty": 0.4, "logit_bias": {5: 14.0, 6: 14.0, 7: 14.0}}
        (plain,) = run_to_end(make_engine(tiny), scored(new=40, **repetitive))
        (drafted,) = run_to_end(
            make_engine(tiny, EngineArgs(speculative_num_draft_tokens=4)), scored(new=40, **repetitive)
        )
        assert drafted.drafts is not None
        assert sum(drafted.drafts.right) > 5
        assert record(drafted) == record(plain)

    def test_they_count_nothing_of_a_request_that_had_the_same_id(
        self, tiny: LoadedModel, run_to_end: Run
    ) -> None:
        engine = make_engine(tiny)
        (first,) = run_to_end(engine, scored(**self.SAMPLING))
        (again,) = run_to_end(engine, scored(**self.SAMPLING))
        assert record(again) == record(first)


class TestCustomizedInfo:
    def test_the_mirror_shows_each_token_and_its_position(self, tiny: LoadedModel, run_to_end: Run) -> None:
        engine = make_engine(tiny, EngineArgs(sampling_backend="mirror"))
        requests = run_to_end(engine, *neighbours(4), ask(new=30))
        for request in requests:
            first = len(request.prompt_token_ids) - 1
            assert request.series.keys() - OWN_SERIES == {"mirror_token_id", "mirror_position"}
            assert request.series["mirror_token_id"] == request.output_ids
            assert request.series["mirror_position"] == list(range(first, first + len(request.output_ids)))

    @pytest.mark.parametrize(
        ("name", "info", "message"),
        [
            ("short", {"mine": [1]}, "gave 1 values under 'mine' for 2 rows"),
            ("greedy", {"output_token_logprobs": [1, 2]}, "'output_token_logprobs' for 2 rows"),
        ],
    )
    def test_a_backend_that_breaks_the_record_is_stopped(
        self,
        tiny: LoadedModel,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        info: Mapping[str, Sequence[int]],
        message: str,
    ) -> None:
        monkeypatch.setattr(backends, "_factories", {})
        register_sampler_backend(name, lambda: lambda logits, rows, token_ids: info)
        engine = make_engine(tiny, EngineArgs(sampling_backend=name))
        engine.add(ask("a"))
        engine.add(ask("b"))
        engine.step()
        ended = engine.step()
        assert [request.finish and request.finish.status_code for request in ended] == [500, 500]
        assert all(request.finish and message in str(request.finish.message) for request in ended)
        engine.check_integrity()


def raises(*_: object) -> Any:
    raise RuntimeError("boom")


class TestIsolation:
    """What is computed for one request fails for that one alone."""

    @pytest.fixture
    def engine(self, tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Engine:
        """One whose sampler backend fails at rows with the seed 666."""
        monkeypatch.setattr(backends, "_factories", {})

        def backend(_: Tensor, rows: Sequence[SamplingRow], token_ids: Sequence[int]) -> Any:
            if any(row.seed == 666 for row in rows):
                raise RuntimeError("boom")
            return {"mine": list(token_ids)}

        register_sampler_backend("picky", lambda: backend)
        return make_engine(tiny, EngineArgs(sampling_backend="picky", speculative_num_draft_tokens=2))

    def alone(self, engine: Engine, run_to_end: Run) -> Any:
        (request,) = run_to_end(engine, scored("good"))
        return record(request)

    @pytest.mark.parametrize("seam", ["rules", "drafter", "backend", "prompt logprobs"])
    def test_a_failure_ends_its_request_alone(
        self, engine: Engine, run_to_end: Run, monkeypatch: pytest.MonkeyPatch, seam: str
    ) -> None:
        expected = self.alone(engine, run_to_end)
        bad, good = scored("bad", sampling_seed=666 if seam == "backend" else 1), scored("good")
        engine.add(bad)
        engine.add(good)
        sequence = engine.scheduler.find("bad")
        assert sequence is not None
        match seam:
            case "rules":
                monkeypatch.setattr(sequence.rules, "check", raises)
            case "drafter":
                monkeypatch.setattr(sequence.drafter, "draft", raises)
            case "prompt logprobs":
                del bad.prompt_series["input_top_logprobs"]
        run_to_end(engine)
        assert bad.finish is not None
        assert bad.finish.status_code == 500
        assert "boom" in str(bad.finish.message) or seam == "prompt logprobs"
        assert record(good) == expected
        assert engine.load.used_tokens == 0

    def test_a_request_that_fails_leaves_in_the_cache_what_was_computed_and_no_more(
        self, tiny: LoadedModel, run_to_end: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It fails at the id that would have filled a page: of that id, no keys and values are known."""
        engine, prompt = make_engine(tiny), range(10, 105)
        bad = ask("bad", prompt)
        engine.add(bad)
        sequence = engine.scheduler.find("bad")
        assert sequence is not None
        monkeypatch.setattr(sequence.rules, "check", raises)
        run_to_end(engine)
        assert (len(prompt) + len(bad.output_ids)) % engine.scheduler.pool.page_size == 0
        turn = (*prompt, *bad.output_ids, 40, 41, 42)
        warm, cold = (
            run_to_end(item, scored(prompt=turn, logprob_start_len=-1))[0]
            for item in (engine, make_engine(tiny))
        )
        assert warm.cached_tokens == 80
        assert record(warm) == record(cold)

    def test_a_step_that_fails_ends_its_requests_and_not_the_engine(
        self, engine: Engine, run_to_end: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = self.alone(engine, run_to_end)
        with monkeypatch.context() as patched:
            patched.setattr(engine._passes, "forward", raises)
            lost = run_to_end(engine, scored("a"), scored("b"))
        assert [request.finish and request.finish.message for request in lost] == ["RuntimeError: boom"] * 2
        assert engine.load.used_tokens == 0
        assert self.alone(engine, run_to_end) == expected

    @pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
    def test_an_id_whose_embedding_is_no_number_ends_its_requests_alone(
        self, device: str, run_to_end: Run, sampling: dict[str, Any]
    ) -> None:
        """Neither those that run beside it nor those that get its pages afterwards see a NaN."""
        model = load_model("builtin:tiny", device=device)
        expected = [record(item) for item in run_to_end(make_engine(model), *neighbours())]
        broken = 733
        model.module.get_input_embeddings().weight.data[broken] = float("nan")
        engine = make_engine(model)
        for _ in range(2):
            bad, *good = run_to_end(engine, ask("bad", [broken] * 90, 20, **sampling), *neighbours())
            assert bad.finish is not None
            assert (bad.finish.type, bad.finish.status_code) == ("abort", 500)
            assert bad.finish.message is not None
            assert "the model's logits" in bad.finish.message
            assert bad.output_ids == []
            assert [record(item) for item in good] == expected

    def test_a_broken_cache_ends_the_engine(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        def lost(*_: object) -> Any:
            raise PageAccountingError("page 7 is in two places at once")

        monkeypatch.setattr(engine.scheduler, "advance", lost)
        engine.add(scored("a"))
        with pytest.raises(PageAccountingError):
            engine.step()


def test_what_pads_a_step_attends_to_no_sequence(
    tiny: LoadedModel, run_to_end: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[int, list[int]]] = []
    forward = LoadedModel.forward

    def noted(self: LoadedModel, batch: Batch, cache: Any) -> Any:
        steps.append((sum(end - start for start, end in batch.spans), batch.seat_of.tolist()))
        return forward(self, batch, cache)

    monkeypatch.setattr(LoadedModel, "forward", noted)
    run_to_end(make_engine(tiny), *neighbours(5))
    assert any(len(seats) > live for live, seats in steps), "no step was padded"
    for live, seats in steps:
        assert min(seats[:live]) >= 0
        assert set(seats[live:]) <= {-1}


class TestEmbeddings:
    """The hidden state of the last prompt token, of length 1."""

    def embeddings(self, engine: Engine, run_to_end: Run, *prompts: Sequence[int]) -> list[Any]:
        asked = [ask(f"e{i}", ids, 0, extras={WANTS_EMBEDDING: True}) for i, ids in enumerate(prompts)]
        return [EMBEDDING.of(request) for request in run_to_end(engine, *asked)]

    def test_depends_on_neither_neighbours_nor_chunks(self, tiny: LoadedModel, run_to_end: Run) -> None:
        prompts = (PROMPT, PROMPT[:-1], PROMPT[40:])
        alone = [self.embeddings(make_engine(tiny), run_to_end, prompt)[0] for prompt in prompts]
        assert self.embeddings(make_engine(tiny), run_to_end, *prompts) == alone
        assert (
            self.embeddings(make_engine(tiny, EngineArgs(chunked_prefill_size=32)), run_to_end, *prompts)
            == alone
        )

    def test_is_that_of_the_last_token(self, tiny: LoadedModel, run_to_end: Run) -> None:
        (request,) = run_to_end(make_engine(tiny), ask(new=1, return_hidden_states=True))
        (embedding,) = self.embeddings(make_engine(tiny), run_to_end, PROMPT)
        (of_the_prompt,) = request.series["hidden_states"][:1]
        last = torch.tensor(of_the_prompt[-1])
        assert embedding == pytest.approx((last / last.norm()).tolist())


class TestCache:
    def test_flushing_waits_for_silence(self, tiny: LoadedModel, run_to_end: Run) -> None:
        engine = make_engine(tiny)
        engine.add(ask())
        assert engine.flush_cache() is False
        run_to_end(engine)
        assert run_to_end(engine, ask())[0].cached_tokens == 80
        assert engine.flush_cache() is True
        assert run_to_end(engine, ask())[0].cached_tokens == 0

    def test_extra_keys_and_a_disabled_cache_share_nothing(self, tiny: LoadedModel, run_to_end: Run) -> None:
        engine = make_engine(tiny)
        cached = [
            run_to_end(engine, ask(extra_key=key))[0].cached_tokens for key in (None, "a", "b", "a", None)
        ]
        assert cached == [0, 0, 0, 80, 80]
        engine = make_engine(tiny, EngineArgs(prefix_caching=False))
        assert [run_to_end(engine, ask())[0].cached_tokens for _ in range(2)] == [0, 0]

    def test_a_leak_is_noticed(self, tiny: LoadedModel) -> None:
        engine = make_engine(tiny)
        (page,) = engine.scheduler.pool.allocate(1)
        with pytest.raises(PageAccountingError):
            engine.check_integrity()
        engine.scheduler.pool.release([page])
        request = ask()
        engine.add(request)
        request.finish = FinishReason("length", length=0)
        with pytest.raises(PageAccountingError, match=r"requests \['r'\] have finished"):
            engine.check_integrity()
        request.finish = None


def test_a_sampling_mask_holds_the_id_that_was_chosen(tiny: LoadedModel, run_to_end: Run) -> None:
    request = ask(temperature=1.0, top_k=3, sampling_seed=5, return_sampling_mask=True)
    run_to_end(make_engine(tiny), request)
    masks = request.series["output_token_sampling_mask"]
    assert [token_id in mask for token_id, mask in zip(request.output_ids, masks, strict=True)] == [True] * 12
    assert {len(mask) for mask in masks} == {3}
    assert all(
        math.isfinite(logprob) and logprob <= 0
        for logprob in request.series["output_token_sampling_logprobs"]
    )
