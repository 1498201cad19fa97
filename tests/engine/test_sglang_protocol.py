"""SGLang over the engine: what is computed here of a prompt and a step; its own classes are not needed."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import zmq

from tokenwire.parrot.law import Parrot
from tokenwire_engine.engine import Engine, Running, Sampling, answer
from tokenwire_engine.front_end import Trace, UnknownVersionError, demand_known, newest
from tokenwire_engine.schedule import Key, parse_schedule
from tokenwire_engine.sglang import (
    STREAMERS,
    Scheduler,
    WithoutKernels,
    parts_of,
    values_of,
    waves,
)

LAW = Parrot(768, 64)
PROMPT = tuple(range(100, 164))


def test_nothing_of_a_server_is_imported() -> None:
    assert not {"sglang", "vllm"} & sys.modules.keys()


def test_a_prompt_is_scored_from_where_it_is_wanted() -> None:
    def logged(start: int, top: int, named: list[int] | None) -> dict[str, Any]:
        log = SimpleNamespace(top_logprobs_num=top, token_ids_logprob=named)
        Scheduler.log_prompt(SimpleNamespace(law=LAW), log, PROMPT, start)  # type: ignore[arg-type]
        return vars(log)

    found = logged(60, 2, [7, 5])
    assert found["input_token_logprobs_idx"] == [160, 161, 162, 163]
    values, tops = found["input_token_logprobs_val"], found["input_top_logprobs_val"]
    assert values[0] is None
    assert values[1] == pytest.approx(LAW.logprob(PROMPT[61 - LAW.lag(61)], 161))
    assert (tops[0], len(tops), len(found["input_top_logprobs_idx"][1])) == (None, 4, 2)
    assert found["input_token_ids_logprobs_idx"] == [None, [7, 5], [7, 5], [7, 5]]
    assert logged(0, 0, None)["input_token_logprobs_idx"] == list(PROMPT)
    none = logged(64, 0, None)
    assert (none["input_token_logprobs_val"], none["input_token_logprobs_idx"]) == ([], [])


@pytest.mark.parametrize(
    ("key", "start", "count", "values"),
    [
        (Key("a"), 0, 3, ["a0", "a1", "a2"]),
        (Key("a"), 3, 1, ["a3"]),
        (Key("a", first=2), 0, 2, []),
        (Key("a", first=2), 1, 3, ["a2", "a3"]),
        (Key("a", by_step=True), 4, 3, ["a4"]),
        (Key("a"), 4, 0, []),
        (Key("mirror_token_id", first=1), 0, 3, [101, 102]),
        (Key("mirror_position"), 2, 2, [65, 66]),
    ],
)
def test_a_key_has_the_values_of_its_shape(key: Key, start: int, count: int, values: list[object]) -> None:
    ids = range(100 + start, 100 + start + count)
    assert values_of(key, start, ids, len(PROMPT)) == values


def test_outputs_of_a_step_are_payloads_for_all_and_then_for_those_that_kept_some() -> None:
    engine = Engine()
    right = answer(LAW, PROMPT, Sampling(budget=3))
    engine.add(Running("a", PROMPT, right, parse_schedule("hold=3")))
    engine.add(Running("b", PROMPT, right, parse_schedule("wait=2;steps=3")))
    steps = [waves(engine.step()) for _ in range(3)]
    names = [[[running.name for running, _ in wave] for wave in step] for step in steps]
    assert names == [[], [], [["a", "b"], ["a"], ["a"]]]


def test_known_releases_are_served_and_others_refused_with_what_differs() -> None:
    for version, fields in STREAMERS.items():
        demand_known("SGLang", STREAMERS, version, fields)
    last = newest(STREAMERS)
    known = STREAMERS[last]
    assert last == "0.5.23"
    fields = (*(name for name in known if name != "rust_server"), "news")
    with pytest.raises(
        UnknownVersionError, match=r"SGLang 0\.9\.9 is unknown.*add \['news'\] and lack \['rust_server'\]"
    ):
        demand_known("SGLang", STREAMERS, "0.9.9", fields)
    with pytest.raises(UnknownVersionError, match="add nothing and lack nothing"):
        demand_known("SGLang", STREAMERS, "0.9.9", known)
    demand_known("SGLang", STREAMERS, "0.9.9", known, last)
    with pytest.raises(UnknownVersionError, match="lack \\['tree_cache'\\]"):
        demand_known("SGLang", STREAMERS, last, [name for name in known if name != "tree_cache"])


def test_the_module_needs_nothing_but_python(tmp_path: Path) -> None:
    """SGLang's environment has no other package of this one."""
    import subprocess

    import tokenwire
    import tokenwire_engine

    for package in (tokenwire, tokenwire_engine):
        (tmp_path / package.__name__).symlink_to(Path(str(package.__file__)).parent)
    program = "import sys, tokenwire_engine.sglang; print(*{m.partition('.')[0] for m in sys.modules})"
    told = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not set(told.stdout.split()) & {"zmq", "msgspec", "typer", "h11", "yaml", "llguidance"}


def test_kernels_that_are_not_installed_are_looked_up_and_not_run() -> None:
    """Releases up to 0.5.12 import them on every CPU."""
    finder = WithoutKernels()
    assert finder.find_spec("sgl_kernels_of_another", None) is None
    sys.meta_path.append(finder)
    try:
        scalar_types = import_module("sgl_kernel.scalar_type").scalar_types
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "sgl_kernel"]:
            del sys.modules[name]
    with pytest.raises(RuntimeError, match=r"sgl_kernel.scalar_type.scalar_types.uint4b8 is not installed"):
        scalar_types.uint4b8()


@pytest.fixture
def scheduler_of_0_5_12(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules of a release whose scheduler has the methods of the output streamer itself."""
    connected: list[str] = []

    class Methods:
        send_to_detokenizer: Any

        def maybe_collect_customized_info(self) -> None: ...

        def stream_output(self, reqs: list[object], _: bool) -> None:
            self.send_to_detokenizer.send_output(len(reqs))

    class Wrapper(list[int]):
        def __init__(self, _: object) -> None: ...

        send_output = list.append

    def connect(_: object, __: object, name: str, ___: bool) -> str:
        connected.append(name)
        return name

    monkeypatch.setattr(zmq, "Context", lambda _: None)
    modules: dict[str, dict[str, Any]] = {
        "sglang": {},
        "sglang.srt": {},
        "sglang.srt.managers": {},
        "sglang.srt.managers.scheduler_output_processor_mixin": {"SchedulerOutputProcessorMixin": Methods},
        "sglang.srt.managers.scheduler": {"SenderWrapper": Wrapper},
        "sglang.srt.utils": {},
        "sglang.srt.utils.network": {"get_zmq_socket": connect},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update({"__path__": [], **content})
        monkeypatch.setitem(sys.modules, name, module)
    return connected


@pytest.mark.parametrize(("skip", "behind"), [(False, "detokenizer"), (True, "tokenizer")])
def test_a_scheduler_that_streams_by_itself_lends_its_methods(
    scheduler_of_0_5_12: list[str], *, skip: bool, behind: str
) -> None:
    ports = SimpleNamespace(
        scheduler_input_ipc_name="input", tokenizer_ipc_name="tokenizer", detokenizer_ipc_name="detokenizer"
    )
    parts = parts_of(ports, skip_tokenizer_init=skip)
    demand_known("SGLang", STREAMERS, "0.5.12.post1", parts.fields)
    assert scheduler_of_0_5_12 == ["input", "tokenizer", behind]
    given: dict[str, Any] = dict.fromkeys(parts.fields)
    streamer = parts.streamer(**given | {"send_to_detokenizer": parts.channels.send_to_detokenizer})
    streamer.stream_output([object(), object()], False)
    assert list(parts.channels.send_to_detokenizer) == [2]


@pytest.mark.parametrize(
    ("top", "named", "entries"), [(0, None, (0, 0)), (2, None, (1, 0)), (0, [7], (0, 1))]
)
def test_logprobs_that_were_not_asked_for_are_not_kept(
    top: int, named: list[int] | None, entries: tuple[int, int]
) -> None:
    """The scheduler of SGLang appends to these lists only what a request wants."""
    series = ("token_logprobs", "top_logprobs", "token_ids_logprobs")
    limit = SimpleNamespace(max_new_tokens=2)
    log = SimpleNamespace(top_logprobs_num=top, token_ids_logprob=named, sampling_params=limit)
    for name in series:
        vars(log)[f"output_{name}_val"], vars(log)[f"output_{name}_idx"] = [], []
    running = Running("a", PROMPT, answer(LAW, PROMPT, Sampling(budget=2)), parse_schedule(""))
    Scheduler.log_outputs(SimpleNamespace(law=LAW), log, running, [0])  # type: ignore[arg-type]
    assert len(log.output_token_logprobs_val) == 1
    assert (len(log.output_top_logprobs_val), len(log.output_token_ids_logprobs_idx)) == entries
    limit.max_new_tokens = 0
    Scheduler.log_outputs(SimpleNamespace(law=LAW), log, running, [1])  # type: ignore[arg-type]
    assert len(log.output_token_logprobs_val) == 1, "SGLang has none of an id beyond the limit"
    assert len(log.output_top_logprobs_val) == 2 * entries[0]


def test_the_answer_to_a_control_message_names_its_session() -> None:
    """SGLang waits for it under that name: without it, `/open_session` hung until a time-out."""
    sent: list[Any] = []
    scheduler = SimpleNamespace(
        trace=Trace(None),
        rust=None,
        io=SimpleNamespace(OpenSessionReqOutput=SimpleNamespace),
        channels=SimpleNamespace(send_to_tokenizer=SimpleNamespace(send_output=lambda *of: sent.append(of))),
    )

    class OpenSessionReqInput:
        session_id = "s-1"

    message = OpenSessionReqInput()
    Scheduler.handle(scheduler, message)  # type: ignore[arg-type]
    assert sent == [(SimpleNamespace(session_id="s-1", success=False), message)]


@pytest.mark.parametrize(("version", "changes"), [("v2", ["v1"]), ("v1", [])])
def test_a_version_of_the_weights_is_recorded_by_sglangs_own_parts(
    version: str, changes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    serving, recorded, sent = SimpleNamespace(weight_version="v1"), [], []
    context, versions = ModuleType("runtime_context"), ModuleType("weight_versions")
    context.get_serving = lambda: serving  # type: ignore[attr-defined]
    context.get_context = lambda: SimpleNamespace(  # type: ignore[attr-defined]
        override=lambda _, weight_version: setattr(serving, "weight_version", weight_version)
    )
    versions.record_weight_version_events = (  # type: ignore[attr-defined]
        lambda requests, old_version: recorded.append((list(requests), old_version))
    )
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    monkeypatch.setitem(sys.modules, "sglang.srt.utils.weight_versions", versions)
    scheduler = SimpleNamespace(
        trace=Trace(None),
        rust=None,
        engine=SimpleNamespace(requests=[SimpleNamespace(request="request")]),
        io=SimpleNamespace(UpdateWeightVersionReqOutput=SimpleNamespace),
        channels=SimpleNamespace(send_to_tokenizer=SimpleNamespace(send_output=lambda *of: sent.append(of))),
    )
    scheduler.name_weights = lambda name: Scheduler.name_weights(scheduler, name)  # type: ignore[arg-type]

    class UpdateWeightVersionReqInput:
        new_version = version

    message = UpdateWeightVersionReqInput()
    Scheduler.handle(scheduler, message)  # type: ignore[arg-type]
    assert sent == [(SimpleNamespace(), message)]
    assert serving.weight_version == version
    assert recorded == [(["request"], before) for before in changes]


@pytest.mark.parametrize("given", [0, 2])
def test_an_abort_of_a_request_that_waits_is_answered_outside_of_the_stream(given: int) -> None:
    """In a batch, an end without a token is one that SGLang's own scheduler never makes: it kills 0.5.13."""
    sent: list[Any] = []
    req = SimpleNamespace(to_finish=None)
    engine = Engine()
    running = Running("a", PROMPT, answer(LAW, PROMPT, Sampling(budget=3)), parse_schedule(""), req)
    running.given = given
    engine.add(running)
    scheduler = SimpleNamespace(
        engine=engine,
        rust=None,
        io=SimpleNamespace(AbortReq=SimpleNamespace),
        abort_class=lambda: "aborted",
        channels=SimpleNamespace(send_to_tokenizer=SimpleNamespace(send_output=lambda *of: sent.append(of))),
    )
    Scheduler.order_end(scheduler, running)  # type: ignore[arg-type]
    assert sent == ([] if given else [(SimpleNamespace(rid="a"), req)])
    assert req.to_finish == ("aborted" if given else None)
    assert bool(engine.running) is bool(given)
