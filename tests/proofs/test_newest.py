"""Names of releases are read from their sources, and each unknown one needs a reason."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from proofs import newest
from proofs.newest import compare, known_paths, known_words, reasons
from proofs.released_names import Name, Release, names_of, releases

from tokenwire.spec_files import read_yaml, spec_root

READ = read_yaml(Path(newest.__file__).with_suffix(".yaml"))
UNBOUND = read_yaml(spec_root() / "unbound.yaml")
SERVER: dict[str, Any] = {
    "requests": {"vllm-chat": "vllm-chat-request"},
    "packages": {
        "made": {"family": "vllm", "routes": ["made/*.py"], "modules": {"made/*.py": {"*": ["vllm-chat"]}}}
    },
}
"""A package whose types belong to one dialect."""


def read_names(source: str, classes: dict[str, list[str]] | None = None) -> set[tuple[str, str, str]]:
    """Return the place, kind and name of all that one module puts on the wire."""
    read = {
        "routes": ["made/*.py"],
        "modules": {"made/*.py": {"*": ["vllm-chat"]} if classes is None else classes},
    }
    release = Release("made", "1.0", {"made/protocol.py": textwrap.dedent(source)})
    return {(name.place, name.kind, name.name) for _, name, _ in names_of(release, read)}


def release_of(source: str) -> list[Release]:
    return [Release("made", "1.0", {"made/protocol.py": textwrap.dedent(source)})]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("class A(BaseModel):\n    temperature: float = 1.0\n    def f(self): x: int = 1", {"temperature"}),
        ("@dataclass\nclass A:\n    rid: str\n    _state: int = 0\n    limit: ClassVar[int] = 3", {"rid"}),
        ("class A(msgspec.Struct):\n    top: int = msgspec.field(name='top_p')", {"top_p"}),
        ("class A(BaseModel):\n    schema_: dict = FieldInfo(alias='schema', default=None)", {"schema"}),
        ("class A(TypedDict):\n    from_: Annotated[str, PropertyInfo(alias='from')]", {"from"}),
        ("A = TypedDict('A', {'async': bool, 'name': str}, total=False)", {"async", "name"}),
        ("class A(BaseModel):\n    model_config = ConfigDict(extra='allow')", set()),
        ("def f():\n    class A(BaseModel):\n        inner: int", {"inner"}),
        ("if SOME:\n    class A:\n        one: int\nelse:\n    class A:\n        two: int", {"one", "two"}),
    ],
)  # fmt: skip
def test_fields_are_read(source: str, names: set[str]) -> None:
    assert read_names(source) == {("vllm-chat", "field", name) for name in names}


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ('StopReason: TypeAlias = Literal["end", "pause"]', {"stop_reason=end", "stop_reason=pause"}),
        ('Other = Literal["not", "read"]', set()),
        ('class Event(BaseModel):\n    type: Optional[Literal["event.new"]] = None', {"type=event.new"}),
        ('class Turn(BaseModel):\n    role: Literal["user"]', {"role=user"}),
        ('Status = Literal["done"]\nclass A(BaseModel):\n    status: Status | None', {"status=done"}),
        ('FINISH_REASON_STRINGS = ("stop", "budget")', {"finish_reason=stop", "finish_reason=budget"}),
        ('class FINISH:\n    def to_json(self):\n        return {"type": "limit", "n": 1}', {"type=limit"}),
        ('class A:\n    def f(self):\n        self.x = {"type": "inside"}', set()),
    ],
)  # fmt: skip
def test_values_are_read(source: str, values: set[str]) -> None:
    assert {name for _, kind, name in read_names(source) if kind == "value"} == values


@pytest.mark.parametrize(
    ("field", "default"),
    [
        ("n: int = 1", "n=1"),
        ('top: int = msgspec.field(name="top_p", default=0.5)', "top_p=0.5"),
        ("n: int = Field(2, ge=1)", "n=2"),
        ("n: int", "n=null"),
        ("n: int = Field(...)", "n=null"),
        ("n: list = Field(default_factory=list)", "n=null"),
        ("n: list = []", "n=null"),
        ("n: str = compute()", "n=null"),
        ('n: bytes = b"x"', """n="b'x'\""""),
    ],
)
def test_defaults_of_requests_are_read(field: str, default: str) -> None:
    for name, expected in (("MadeRequest", {default}), ("MadeResponse", set())):
        names = read_names(f"class {name}(BaseModel):\n    {field}")
        assert {name for _, kind, name in names if kind == "default"} == expected


def test_bases_that_are_not_read_are_named() -> None:
    source = """
        class Here(BaseModel):
            a: int
        class Made(Here, module.Elsewhere, Generic[T]):
            b: int
    """
    assert {name for _, kind, name in read_names(source) if kind == "base"} == {"Elsewhere"}


def test_endpoints_are_read() -> None:
    source = """
        @app.get("/health")
        @admin_router.api_route("/flush", methods=["GET", "POST"])
        async def f(): ...
        @router.post(path="/named")
        @app.exception_handler("/not-a-route")
        @cache.get("/not-a-router")
        def g(): ...
        @router.websocket(os.environ.get("ROUTE", "/v1/realtime"))
        def h(): ...
        @router.post(ROUTE)
        def i(): ...
        app.state.router.add_api_route("/added", h, methods=["POST"])
        table.get("/not-a-route")
    """
    endpoints = {name for _, kind, name in read_names(source) if kind == "endpoint"}
    assert endpoints == {"/health", "/flush", "/named", "/v1/realtime", "{ROUTE}", "/added"}


def test_modules_and_types_of_no_dialect_are_named_whole() -> None:
    source = "class Known(BaseModel):\n    a: int\nclass Other(BaseModel):\n    b: int"
    assert read_names(source, {"K*": ["vllm-chat"]}) == {
        ("vllm-chat", "field", "a"),
        ("made", "type", "Other"),
    }
    assert read_names(source, {}) == {("made", "module", "made/protocol.py")}


@pytest.mark.parametrize("zipped", [True, False])
def test_sources_are_not_imported(tmp_path: Path, zipped: bool) -> None:
    files = {
        "made/sub/protocol.py": "raise SystemExit\nclass A(BaseModel):\n    made_up: int",
        "made/other.txt": "no source",
        "made-2.0.dist-info/METADATA": "",
        "unrelated/protocol.py": "",
    }
    where = tmp_path / ("made-2.0-py3-none-any.whl" if zipped else "packages")
    if zipped:
        with ZipFile(where, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
    else:
        for name, text in files.items():
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            (where / name).write_text(text, "utf-8")
    (release,) = releases(where, SERVER["packages"])
    assert (release.package, release.version, set(release.sources)) == (
        "made",
        "2.0",
        {"made/sub/protocol.py"},
    )
    assert Name("vllm-chat", "field", "made_up") in compare([release], SERVER, {}).unknown


REQUEST = """
    class Result(BaseModel):
        messages: list
        made_up: int
    @router.post("/v1/chat/completions")
    @router.post("/made/up")
    def f(): ...
"""
MADE_UP = {Name("vllm-chat", "field", "made_up"), Name("made", "endpoint", "/made/up")}


def test_unknown_names_need_a_reason() -> None:
    difference = compare(release_of(REQUEST), SERVER, {"made": {"/made/*": "a reason"}})
    assert (set(difference.unknown), difference.fails()) == (MADE_UP, True)
    assert [name.name for name in difference.unknown.keys() - difference.covered.keys()] == ["made_up"]
    assert compare(release_of(REQUEST), SERVER, {"made": {"made_* /made/*": "of another place"}}).fails()
    listed = {"made vllm-chat": {"made_* /made/*": "a reason"}}
    assert not compare(release_of(REQUEST), SERVER, listed).fails()


def test_entries_that_match_nothing_are_found() -> None:
    listed = {"made vllm-chat": {"made_up /made/* messages": "a reason"}}
    (unused,) = compare(release_of(REQUEST), SERVER, listed).unused
    assert "messages matches no unknown name" in unused  # it is known
    more = {**SERVER, "packages": {**SERVER["packages"], "absent": {"modules": {}}}}
    assert compare(release_of(REQUEST), more, listed).unused == []


ENGINE = {"made/engine.py": {"FINISH*": ["vllm-chat"]}}
WITH_ENGINE: dict[str, Any] = {
    **SERVER,
    "packages": {"made": {**SERVER["packages"]["made"], "routes": [], "inside": ENGINE}},
}
CHAT = sorted(
    json.loads((spec_root() / "schemas" / "vllm-chat-request.json").read_text("utf-8"))["properties"]
)
RELEASED = "\n".join(("class ChatRequest(BaseModel):", *(f"    {name}: Any" for name in CHAT)))
"""A request with all fields of the schema, without defaults."""


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("    seed: Any", "    seed: Any\n    made_up: int = 0", {"field made_up"}),
        ("    seed: Any", "    sown: Any", {"field sown", "gone seed"}),
        ("    seed: Any", "", {"gone seed"}),
        ("    seed: Any", "    seed: Any = 1", {"default seed=1"}),
        ("    seed: Any", '    seed: Literal["made_up"]', {"value seed=made_up"}),
        ("class Chat", 'class Event(BaseModel):\n    type: Literal["made"]\nclass Chat', {"value type=made"}),
        ('"stop"', '"stop", "made_up"', {"value finish_reason=made_up"}),
        ("(BaseModel)", "(Mixin)", {"base Mixin"}),
    ],
)  # fmt: skip
def test_each_change_of_a_release_is_printed(old: str, new: str, found: set[str]) -> None:
    def unknown(old: str, new: str) -> set[str]:
        sources = {"made/protocol.py": RELEASED, "made/engine.py": 'FINISH_REASONS = ("stop", "length")'}
        changed = {path: source.replace(old, new) for path, source in sources.items()}
        difference = compare([Release("made", "1.0", changed)], WITH_ENGINE, {})
        return {f"{name.kind} {name.name}" for name in difference.unknown}

    assert unknown(old, new) - unknown("", "") == found


def test_values_of_unknown_fields_need_no_reason() -> None:
    source = "class R(BaseModel):\n    made_up: Literal['a_value']\n    role: Literal['another']"
    difference = compare(release_of(source), SERVER, {})
    assert {name.name for name in difference.unknown} == {"made_up", "role=another"}


def test_the_default_of_a_schema_is_known() -> None:
    for default, known in (("False", True), ("True", False)):
        source = f"class ChatRequest(BaseModel):\n    ignore_eos: bool = {default}"
        names = {name for name in compare(release_of(source), SERVER, {}).unknown if name.kind == "default"}
        assert (not names) is known


def test_other_types_of_an_engine_are_not_named() -> None:
    source = "class Scheduler:\n    waiting: int"
    release = [Release("made", "1.0", {"made/engine.py": source, "made/protocol.py": ""})]
    packages = {"made": {"modules": {}, "inside": ENGINE}}
    difference = compare(release, {**SERVER, "packages": packages}, {})
    assert not difference.unknown
    assert [line.split()[1:3] for line in difference.unused] == [["made/engine.py:", "FINISH*"]]


def test_moved_modules_are_found() -> None:
    made = {
        "routes": ["made/server.py"],
        "modules": {"made/protocol.py": {"R*": ["vllm-chat"], "S*": []}, "made/x.py": {}},
    }
    unused = compare(release_of(REQUEST), {**SERVER, "packages": {"made": made}}, {}).unused
    assert [line.split()[1:-3] for line in unused] == [
        ["made/server.py"],
        ["made/protocol.py:", "S*"],
        ["made/x.py"],
    ]


def test_the_command_prints_names_without_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "anthropic" / "types"
    folder.mkdir(parents=True)
    (folder / "stop_reason.py").write_text('StopReason: TypeAlias = Literal["end_turn", "made_up"]', "utf-8")
    assert newest.main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert printed.splitlines()[1].split()[:3] == ["anthropic-messages", "value", "stop_reason=made_up"]
    assert "end_turn" not in printed
    assert "openai and sglang and transformers and vllm are missing" in printed


def test_the_command_prints_reasons_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "sampling_params.py").write_text(
        "class SamplingParams:\n    output_kind: int", "utf-8"
    )
    newest.main([str(tmp_path)])
    assert "output_kind" not in capsys.readouterr().out
    newest.main(["--reasons", str(tmp_path)])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "output_kind" in line)
    assert "SamplingParams" in line
    assert line.rstrip().endswith("how the engine runs a request or stores values")


def test_paths_without_a_known_package_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        newest.main([str(tmp_path)])
    assert "found none of vllm, sglang, openai, anthropic" in capsys.readouterr().err


def test_names_of_dialects_and_their_schemas_are_known() -> None:
    words = known_words("openai-responses", READ["requests"])
    assert {"max_output_tokens", "response.output_text.delta", "function_call", "truncation"} <= words
    assert not {"max_new_tokens", "made_up"} & words  # the former is Tokenwire's own name
    assert "message.output_text.logprobs" in words  # a word without a pointer
    assert "response.reasoning_summary_part.added" in words  # in the grammar
    assert "include_reasoning" in known_words("vllm-chat", READ["requests"])  # in the schema of requests
    assert {"/inference/v1/generate", "/detokenize", "/pause", "/version"} <= known_paths("vllm")
    assert "/get_server_info" in known_paths("sglang")


def test_each_entry_has_a_place_and_a_reason() -> None:
    dialects = {path.stem for path in (spec_root() / "dialects").glob("*.yaml")}
    for entry in reasons(UNBOUND):
        assert set(entry.places) <= dialects | set(READ["packages"]), entry
        assert entry.reason, entry


def test_no_entry_is_known_meanwhile() -> None:
    for entry in reasons(UNBOUND):
        words = [
            known_words(place, READ["requests"]) for place in entry.places if place not in READ["packages"]
        ]
        assert not words or any(
            entry.pattern.partition("=")[2] or entry.pattern not in known for known in words
        ), entry
