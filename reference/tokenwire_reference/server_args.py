"""How a server was started. Names and defaults are SGLang's where SGLang has them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerArgs:
    """All flags of `tokenwire-reference serve`; `/server_info` shows each under its name here."""

    model_path: str = "builtin:tiny"
    """A directory that transformers can load, or a builtin model: `builtin:tiny`."""
    served_model_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 30000
    """0: any free port."""
    device: str = "cpu"
    dtype: str = "auto"
    context_length: int | None = None
    """None: what the model was made for."""
    stream_interval: int = 1
    incremental_streaming_output: bool = False
    """False: cumulative streams of `/generate`."""
    stream_response_default_include_usage: bool = False
    max_running_requests: int = 64
    max_total_tokens: int | None = None
    """Tokens that the KV pool holds; None: the engine's default."""
    chunked_prefill_size: int = 512
    page_size: int = 16
    disable_radix_cache: bool = False
    sampling_backend: str = "pytorch"
    """A sampler registered by name; `mirror` also repeats each id and its position in customized_info."""
    skip_tokenizer_init: bool = False
    enable_cache_report: bool = False
    return_input_ids: bool = False
    return_output_ids: bool = False
    random_seed: int | None = None
    weight_version: str = "default"
    log_level: str = "warning"
    log_requests: bool = False
    """Write an access log line for each request."""
    send_buffer_bytes: int = 32 * 1024
    """Kernel buffer of each connection; small: a slow reader is noticed soon and its outputs coalesce."""
    cpu_threads: int = 1
    """Threads of one torch operation on the CPU; small models lose time to more."""

    @property
    def model_name(self) -> str:
        return self.served_model_name or self.model_path
