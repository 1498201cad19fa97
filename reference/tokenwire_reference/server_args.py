"""How a server was started. Names and defaults are SGLang's where SGLang has them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenwire_reference.channels.formats import REASONING, TOOL_CALLS

_CHOICES: dict[str, tuple[str | None, ...]] = {
    "api_dialect": ("sglang", "vllm"),
    "hicache_storage_backend": (None, "file"),
    "speculative_algorithm": (None, "NGRAM"),
    "tool_call_parser": (None, *TOOL_CALLS),
    "reasoning_parser": (None, *REASONING),
}
_INT32 = 2**31 - 1
_RANGES = {
    "port": (0, 2**16 - 1),
    "stream_interval": (1, _INT32),
    "max_queued_requests": (1, _INT32),
    "max_body_bytes": (1, _INT32),
    "receive_seconds": (0.001, 86400),
    "drain_seconds": (0, 86400),
    "max_total_tokens": (1, _INT32),
    "chunked_prefill_size": (1, _INT32),
    "page_size": (1, _INT32),
    "max_running_requests": (1, _INT32),
    "hicache_size_pages": (1, _INT32),
    "hicache_storage_max_bytes": (1, 2**63 - 1),
    "speculative_num_draft_tokens": (1, 128),
    "random_seed": (-(2**63), 2**63 - 1),
    "send_buffer_bytes": (1, _INT32),
    "cpu_threads": (1, 1024),
    "near_ties": (0.0, 1.0),
    "test_retract_interval": (0, _INT32),
    "test_crash_after_stream_outputs": (0, _INT32),
}
"""Least and most of flags that are numbers; a flag that may be left out may be None."""


@dataclass(frozen=True)
class ServerArgs:
    """All flags of `tokenwire-reference serve`; `/server_info` shows each under its name here."""

    model_path: str = "builtin:tiny"
    """A directory that transformers can load, or a builtin model: `builtin:tiny`."""
    script: str | None = None
    """`builtin:scripted`: a JSON file with what each request is answered with that brings no script."""
    served_model_name: str | None = None
    api_dialect: str = "sglang"
    """sglang or vllm: whose shapes the chat, completions, tokenizer and error answers have."""
    host: str = "127.0.0.1"
    port: int = 30000
    """0: any free port."""
    api_key: str | None = field(default=None, repr=False)
    """The key that every request must bear, but for `api.keys.OPEN_PATHS`; None: no request needs one."""
    admin_api_key: str | None = field(default=None, repr=False)
    """The key for aborting everything, flushing and pausing; it opens the rest too. None: as all requests."""
    device: str = "cpu"
    dtype: str = "auto"
    context_length: int | None = None
    """None: what the model was made for."""
    stream_interval: int = 1
    incremental_streaming_output: bool = False
    """False: cumulative streams of `/generate`."""
    stream_response_default_include_usage: bool = False
    max_running_requests: int = 64
    max_queued_requests: int | None = None
    """Requests that may wait; more are refused with 503. None: any number."""
    max_total_tokens: int | None = None
    """Tokens that the KV pool holds; None: the engine's default."""
    chunked_prefill_size: int = 512
    page_size: int = 16
    disable_radix_cache: bool = False
    disable_cuda_graph: bool = False
    """Launch every kernel of every decode, rather than replay what was captured for its number of rows."""
    enable_hierarchical_cache: bool = False
    """Keep evicted pages in host memory, and in a storage backend where one is named."""
    hicache_size_pages: int = 1024
    hicache_storage_backend: str | None = None
    hicache_storage_dir: str | None = None
    hicache_storage_max_bytes: int | None = None
    """What the files in that directory may take, all models together; None: no limit."""
    speculative_algorithm: str | None = None
    speculative_num_draft_tokens: int = 4
    sampling_backend: str = "pytorch"
    """A sampler registered by name; `mirror` also repeats each id and its position in customized_info."""
    tool_call_parser: str | None = None
    """How the model calls tools; None: a chat may not offer any."""
    reasoning_parser: str | None = None
    """How the model marks its reasoning; None: all of it is content."""
    skip_tokenizer_init: bool = False
    enable_cache_report: bool = False
    return_input_ids: bool = False
    return_output_ids: bool = False
    max_body_bytes: int = 16 * 1024 * 1024
    """A longer body of a request is refused with 413."""
    receive_seconds: float = 60.0
    """In which a request must have come as a whole; then its connection is closed. Also if nothing comes."""
    drain_seconds: float = 0.0
    """For which requests may go on after SIGTERM, when new ones are refused with 503."""
    random_seed: int | None = None
    weight_version: str = "default"
    enable_metrics: bool = False
    """Answer `/metrics`; a server of the vLLM dialect always does."""
    log_level: str = "warning"
    log_requests: bool = False
    """Write an access log line for each request."""
    send_buffer_bytes: int = 32 * 1024
    """Kernel buffer of each connection; small: a slow reader is noticed soon and its outputs coalesce."""
    enable_faults: bool = False
    """A request may name a fault in the header x-tokenwire-fault, and goes wrong as a real bug did."""
    cpu_threads: int = 1
    """Threads of one torch operation on the CPU; small models lose time to more."""
    near_ties: float = 0.0
    """The share of greedy answers of which a near tie goes the other way, as on servers whose arithmetic
    depends on the batch; above 0, logprobs move a little too.
    """
    test_retract_interval: int = 0
    """Test hook: retract a running request every so many steps; 0 for never."""
    test_crash_after_stream_outputs: int = 0
    """Test hook: the server dies after so many emissions, and its streams are cut; 0 for never."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                words = " or ".join(str(choice) for choice in choices if choice is not None)
                raise ValueError(f"{_flag(name)} is {getattr(self, name)!r}; choose {words}")
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"{_flag(name)} is {value}; it must be {least} to {most}")
        if self.max_total_tokens is not None and self.max_total_tokens < self.page_size:
            raise ValueError(
                f"--max-total-tokens is {self.max_total_tokens}, less than one page of {self.page_size}"
            )
        if not self.host:
            raise ValueError("--host is empty; name an address, 127.0.0.1 for this machine only")
        for name in ("api_key", "admin_api_key"):
            key = getattr(self, name)
            if key is not None and not (key and all("!" <= character <= "~" for character in key)):
                raise ValueError(
                    f"{_flag(name)} is empty or not of visible ASCII characters; headers bear no other"
                )
        if (self.hicache_storage_backend is None) != (self.hicache_storage_dir is None):
            raise ValueError("--hicache-storage-backend and --hicache-storage-dir need each other; give both")
        if self.hicache_storage_max_bytes is not None and self.hicache_storage_dir is None:
            raise ValueError("--hicache-storage-max-bytes limits --hicache-storage-dir; give that, too")
        if self.hicache_storage_dir is not None and not self.enable_hierarchical_cache:
            raise ValueError("--hicache-storage-dir needs --enable-hierarchical-cache, which fills it")

    @property
    def model_name(self) -> str:
        return self.served_model_name or self.model_path


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
