"""The arguments of a server. Names and defaults are SGLang's where SGLang has them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from tokenwire_reference.extras.channels.formats import REASONING, TOOL_CALLS

_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Flag:
    """The help of a flag on the command line, and its allowed values."""

    help: str
    choices: tuple[str | None, ...] = ()
    between: tuple[float, float] | None = None
    """The minimum and the maximum of a number. A flag with the default None may also be None."""
    names: tuple[str, ...] = ()
    """The spellings of the flag; empty if the spelling follows from the name of the field."""
    envvar: str | None = None


def _flag(default: Any, help_text: str, *, secret: bool = False, **facts: Any) -> Any:
    return field(default=default, repr=not secret, metadata={"flag": Flag(help_text, **facts)})


@dataclass(frozen=True)
class ServerArgs:
    """All flags of `tokenwire-reference serve`.

    `/server_info` reports them under the names of these fields.
    """

    model_path: str = _flag(
        "builtin:tiny",
        "Directory of a causal language model, or a builtin one, such as builtin:tiny.",
        names=("--model-path", "--model"),
    )
    script: str | None = _flag(None, "JSON file of token ids for builtin:scripted.")
    served_model_name: str | None = _flag(None, "Name in /v1/models and answers.")
    api_dialect: str = _flag(
        "sglang", "Whose shapes answers have: sglang or vllm.", choices=("sglang", "vllm")
    )
    host: str = _flag("127.0.0.1", "Address to listen on.")
    port: int = _flag(30000, "Port to listen on; 0 for any free one.", between=(0, 2**16 - 1))
    api_key: str | None = _flag(
        None,
        "Key that requests must bear (Authorization: Bearer KEY); env:NAME reads it from a variable.",
        secret=True,
    )
    admin_api_key: str | None = _flag(
        None, "Key for aborting everything, flushing and pausing; env:NAME as above.", secret=True
    )
    device: str = _flag("cpu", "cpu or cuda.")
    dtype: str = _flag("auto", "auto, float32, bfloat16 or float16.")
    context_length: int | None = _flag(None, "Shorten the context of the model.")
    """The context length; None for the length that the model was built for."""
    stream_interval: int = _flag(
        1, "New tokens that an event of a stream holds at least.", between=(1, _INT32)
    )
    incremental_streaming_output: bool = _flag(False, "Stream what is new in each event, not all so far.")
    """True for incremental streams of `/generate`; False for cumulative streams."""
    stream_response_default_include_usage: bool = _flag(False, "End every chat stream with its usage.")
    max_running_requests: int = _flag(64, "Requests that run at once.", between=(1, _INT32))
    dp_size: int = _flag(
        1, "Engines that share the requests, each with weights and a cache of its own.", between=(1, 64)
    )
    max_queued_requests: int | None = _flag(
        None, "Requests that may wait; more are refused with 503.", between=(1, _INT32)
    )
    """None for any number."""
    request_waiting_timeout: float | None = _flag(
        None, "Seconds that a request may wait; it is then refused with 503.", between=(0.001, 86400)
    )
    """None for any time."""
    max_total_tokens: int | None = _flag(None, "Tokens that the KV cache holds.", between=(1, _INT32))
    chunked_prefill_size: int = _flag(
        512, "Prompt tokens that one step computes at most.", between=(1, _INT32)
    )
    page_size: int = _flag(16, "Tokens in a page of the KV cache.", between=(1, _INT32))
    disable_radix_cache: bool = _flag(False, "Compute every prompt in full; reuse no prefix.")
    disable_cuda_graph: bool = _flag(False, "Launch decodes kernel by kernel; capture none.")
    enable_hierarchical_cache: bool = _flag(False, "Keep evicted pages of the KV cache in host memory.")
    hicache_size_pages: int = _flag(1024, "Pages that host memory keeps.", between=(1, _INT32))
    hicache_storage_backend: str | None = _flag(
        None, "Where pages go that host memory evicts: file.", choices=(None, "file")
    )
    hicache_storage_dir: str | None = _flag(None, "Directory of the file storage backend.")
    hicache_storage_max_bytes: int | None = _flag(
        None, "What that directory may take; the least recently used files go first.", between=(1, 2**63 - 1)
    )
    disaggregation_mode: str = _flag(
        "null",
        "Do one half of each request: prefill or decode. A router sends it to both.",
        choices=("null", "prefill", "decode"),
    )
    disaggregation_bootstrap_port: int = _flag(
        8998,
        "Port at which a server that prefills hands pages over; 0 for any free one.",
        between=(0, 2**16 - 1),
    )
    disaggregation_prefill_hosts: list[str] | None = _flag(  # noqa: RUF009 - None is the default
        None,
        "Host, address or network (10.0.0.0/8) of prefill servers that requests may name to a server that "
        "decodes; once for each. Without it, this machine.",
        names=("--disaggregation-prefill-host",),
    )
    disaggregation_timeout_seconds: float = _flag(
        30.0, "Seconds in which the other half must have come.", between=(0.001, 86400)
    )
    enable_lora: bool = _flag(False, "Let low-rank adapters be loaded while the server runs.")
    lora_paths: list[str] | None = _flag(  # noqa: RUF009 - None is the default
        None,
        "NAME=PATH of a low-rank adapter, as PEFT writes it, or NAME=builtin:SEED; once for each.",
        names=("--lora-paths", "--lora-modules"),
    )
    speculative_algorithm: str | None = _flag(
        None, "Draft tokens and verify them: NGRAM.", choices=(None, "NGRAM")
    )
    speculative_num_draft_tokens: int = _flag(4, "Tokens drafted for each step.", between=(1, 128))
    sampling_backend: str = _flag(
        "pytorch", "Registered sampler: pytorch, or mirror, which repeats each id in customized_info."
    )
    tool_call_parser: str | None = _flag(
        None, f"How the model calls tools: {', '.join(TOOL_CALLS)}.", choices=(None, *TOOL_CALLS)
    )
    """The format of tool calls in answers; None to refuse chats with tools."""
    reasoning_parser: str | None = _flag(
        None, f"How the model marks its reasoning: {', '.join(REASONING)}.", choices=(None, *REASONING)
    )
    """The format of reasoning in answers; None to treat all text as content."""
    skip_tokenizer_init: bool = _flag(False, "Ids in, ids out: no tokenizer, no text.")
    enable_cache_report: bool = _flag(False, "Report cached tokens in chat usage.")
    return_input_ids: bool = _flag(False, "Put the prompt's ids into sglext of every chat answer.")
    return_output_ids: bool = _flag(False, "Put the output ids into sglext of every chat answer.")
    max_body_bytes: int = _flag(
        16 * 1024 * 1024, "Size of a request body; a longer one is refused with 413.", between=(1, _INT32)
    )
    receive_seconds: float = _flag(
        60.0,
        "Seconds in which a request must have come as a whole; then its connection is closed.",
        between=(0.001, 86400),
    )
    send_seconds: float = _flag(
        60.0,
        "Seconds in which a client must read something of what waits for it; then its connection is closed.",
        between=(0.001, 86400),
    )
    drain_seconds: float = _flag(
        0.0,
        "Seconds for which requests may go on after SIGTERM; new ones are refused with 503.",
        between=(0, 86400),
    )
    constraint_seconds: float = _flag(
        2.0,
        "CPU seconds in which a constraint (schema, regex, grammar) must compile; others are refused.",
        between=(0.001, 3600),
    )
    constraint_megabytes: int = _flag(
        64, "MiB that a compiled constraint may take; others are refused.", between=(1, 1 << 16)
    )
    random_seed: int | None = _flag(None, "Seed of requests that bring none.", between=(-(2**63), 2**63 - 1))
    weight_version: str = _flag("default", "Version named in meta_info.")
    enable_prefill_weight_versions: bool = _flag(
        False, "Name the versions of the weights that computed the prompt in meta_info."
    )
    enable_metrics: bool = _flag(False, "Answer /metrics in the Prometheus format.")
    """True to answer `/metrics`. A server of the vLLM dialect always answers it."""
    log_level: str = _flag("warning", "debug, info, warning or error.")
    log_requests: bool = _flag(False, "Log each request.")
    send_buffer_bytes: int = _flag(
        32 * 1024,
        "Kernel send buffer of a connection; small ones show slow readers soon.",
        between=(1, _INT32),
    )
    enable_faults: bool = _flag(False, "Let requests name faults; `faults` lists them.")
    cpu_threads: int = _flag(1, "Threads of a torch operation.", between=(1, 1024))
    near_ties: float = _flag(
        0.0,
        "Share of greedy answers in which a near tie goes the other way; logprobs move, too.",
        between=(0.0, 1.0),
    )
    test_retract_interval: int = _flag(
        0,
        "Test hook: retract a request each time after this number of steps.",
        between=(0, _INT32),
        envvar="TOKENWIRE_TEST_RETRACT",
    )
    test_crash_after_stream_outputs: int = _flag(
        0, "Test hook: die after this number of emissions.", between=(0, _INT32)
    )

    def __post_init__(self) -> None:
        for arg in fields(self):
            flag, value, name = arg.metadata["flag"], getattr(self, arg.name), spelled(arg.name)
            if flag.choices and value not in flag.choices:
                words = " or ".join(str(choice) for choice in flag.choices if choice is not None)
                raise ValueError(f"{name} is {value!r}; choose {words}")
            if flag.between and value is not None and not flag.between[0] <= value <= flag.between[1]:
                raise ValueError(f"{name} is {value}; it must be {flag.between[0]} to {flag.between[1]}")
        if self.max_total_tokens is not None and self.max_total_tokens < self.page_size:
            raise ValueError(
                f"--max-total-tokens is {self.max_total_tokens}, less than one page of {self.page_size}"
            )
        if not self.host:
            raise ValueError("--host is empty; name an address, 127.0.0.1 for this machine only")
        if wrong := [given for given in self.lora_paths or () if not all(given.partition("="))]:
            raise ValueError(f"--lora-paths is {wrong[0]!r}; write NAME=PATH")
        for name in ("api_key", "admin_api_key"):
            key = getattr(self, name)
            if key is not None and not (key and all("!" <= character <= "~" for character in key)):
                raise ValueError(f"{spelled(name)} is empty or holds other characters than visible ASCII")
        if (self.hicache_storage_backend is None) != (self.hicache_storage_dir is None):
            raise ValueError("--hicache-storage-backend and --hicache-storage-dir need each other; give both")
        if self.hicache_storage_max_bytes is not None and self.hicache_storage_dir is None:
            raise ValueError("--hicache-storage-max-bytes limits --hicache-storage-dir; give that, too")
        if self.hicache_storage_dir is not None and self.dp_size > 1:
            raise ValueError("--hicache-storage-dir is the storage of one engine; leave --dp-size out")
        if self.disaggregation_mode != "null" and self.dp_size > 1:
            raise ValueError("--disaggregation-mode hands over the pages of one engine; leave --dp-size out")
        if self.disaggregation_mode == "prefill" and self.disable_radix_cache:
            raise ValueError(
                "--disaggregation-mode prefill hands over cached pages; drop --disable-radix-cache"
            )
        if self.disaggregation_mode == "decode" and self.enable_hierarchical_cache:
            raise ValueError("--disaggregation-mode decode keeps no prefix; drop --enable-hierarchical-cache")
        if self.hicache_storage_dir is not None and not self.enable_hierarchical_cache:
            raise ValueError("--hicache-storage-dir needs --enable-hierarchical-cache, which fills it")

    @property
    def adapters(self) -> list[tuple[str, str]]:
        """Return the name and the path of each adapter that is loaded at the start."""
        return [(name, path) for name, _, path in (given.partition("=") for given in self.lora_paths or ())]

    @property
    def model_name(self) -> str:
        return self.served_model_name or self.model_path


def spelled(name: str) -> str:
    """Return the flag as on the command line."""
    return "--" + name.replace("_", "-")
