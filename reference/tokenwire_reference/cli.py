"""`tokenwire-reference`: start the reference engine behind HTTP."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from typer.models import OptionInfo

from tokenwire_reference.api.limits import limits_in_words
from tokenwire_reference.channels.formats import REASONING, TOOL_CALLS
from tokenwire_reference.server_args import ServerArgs

DEFAULTS = ServerArgs()

app = typer.Typer(
    help="The reference engine of Tokenwire.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _flag(help_text: str, *names: str, envvar: str | None = None) -> OptionInfo:
    option: OptionInfo = typer.Option(*names, help=help_text, envvar=envvar)
    return option


@app.command(epilog=f"Limits of a request: {limits_in_words()}.")
def serve(  # noqa: PLR0917 - one parameter for each flag; typer calls it by name
    model_path: Annotated[
        str,
        _flag(
            "Directory of a causal language model, or a builtin one, such as builtin:tiny.",
            "--model-path",
            "--model",
        ),
    ] = DEFAULTS.model_path,
    script: Annotated[str | None, _flag("JSON file of token ids for builtin:scripted.")] = DEFAULTS.script,
    served_model_name: Annotated[
        str | None, _flag("Name in /v1/models and answers.")
    ] = DEFAULTS.served_model_name,
    api_dialect: Annotated[str, _flag("Whose shapes answers have: sglang or vllm.")] = DEFAULTS.api_dialect,
    host: Annotated[str, _flag("Address to listen on.")] = DEFAULTS.host,
    port: Annotated[int, _flag("Port to listen on; 0 for any free one.")] = DEFAULTS.port,
    api_key: Annotated[
        str | None,
        _flag("Key that requests must bear (Authorization: Bearer KEY); env:NAME reads it from a variable."),
    ] = DEFAULTS.api_key,
    admin_api_key: Annotated[
        str | None, _flag("Key for aborting everything, flushing and pausing; env:NAME as above.")
    ] = DEFAULTS.admin_api_key,
    device: Annotated[str, _flag("cpu or cuda.")] = DEFAULTS.device,
    dtype: Annotated[str, _flag("auto, float32, bfloat16 or float16.")] = DEFAULTS.dtype,
    context_length: Annotated[
        int | None, _flag("Shorten the context of the model.")
    ] = DEFAULTS.context_length,
    stream_interval: Annotated[
        int, _flag("New tokens that an event of a stream holds at least.", "--stream-interval")
    ] = DEFAULTS.stream_interval,
    incremental_streaming_output: Annotated[
        bool,
        _flag("Stream what is new in each event, not all so far.", "--incremental-streaming-output"),
    ] = DEFAULTS.incremental_streaming_output,
    stream_response_default_include_usage: Annotated[
        bool,
        _flag("End every chat stream with its usage.", "--stream-response-default-include-usage"),
    ] = DEFAULTS.stream_response_default_include_usage,
    max_running_requests: Annotated[int, _flag("Requests that run at once.")] = DEFAULTS.max_running_requests,
    max_queued_requests: Annotated[
        int | None, _flag("Requests that may wait; more are refused with 503.")
    ] = DEFAULTS.max_queued_requests,
    max_body_bytes: Annotated[
        int, _flag("Size of a request body; a longer one is refused with 413.")
    ] = DEFAULTS.max_body_bytes,
    receive_seconds: Annotated[
        float, _flag("Seconds in which a request must have come as a whole; then its connection is closed.")
    ] = DEFAULTS.receive_seconds,
    drain_seconds: Annotated[
        float, _flag("Seconds for which requests may go on after SIGTERM; new ones are refused with 503.")
    ] = DEFAULTS.drain_seconds,
    max_total_tokens: Annotated[
        int | None, _flag("Tokens that the KV cache holds.")
    ] = DEFAULTS.max_total_tokens,
    chunked_prefill_size: Annotated[
        int, _flag("Prompt tokens that one step computes at most.")
    ] = DEFAULTS.chunked_prefill_size,
    page_size: Annotated[int, _flag("Tokens in a page of the KV cache.")] = DEFAULTS.page_size,
    disable_radix_cache: Annotated[
        bool, _flag("Compute every prompt in full; reuse no prefix.", "--disable-radix-cache")
    ] = DEFAULTS.disable_radix_cache,
    disable_cuda_graph: Annotated[
        bool, _flag("Launch decodes kernel by kernel; capture none.", "--disable-cuda-graph")
    ] = DEFAULTS.disable_cuda_graph,
    enable_hierarchical_cache: Annotated[
        bool, _flag("Keep evicted pages of the KV cache in host memory.", "--enable-hierarchical-cache")
    ] = DEFAULTS.enable_hierarchical_cache,
    hicache_size_pages: Annotated[int, _flag("Pages that host memory keeps.")] = DEFAULTS.hicache_size_pages,
    hicache_storage_backend: Annotated[
        str | None, _flag("Where pages go that host memory evicts: file.")
    ] = DEFAULTS.hicache_storage_backend,
    hicache_storage_dir: Annotated[
        str | None, _flag("Directory of the file storage backend.")
    ] = DEFAULTS.hicache_storage_dir,
    hicache_storage_max_bytes: Annotated[
        int | None, _flag("What that directory may take; the least recently used files go first.")
    ] = DEFAULTS.hicache_storage_max_bytes,
    speculative_algorithm: Annotated[
        str | None, _flag("Draft tokens and verify them: NGRAM.")
    ] = DEFAULTS.speculative_algorithm,
    speculative_num_draft_tokens: Annotated[
        int, _flag("Tokens drafted for each step.")
    ] = DEFAULTS.speculative_num_draft_tokens,
    sampling_backend: Annotated[
        str, _flag("Registered sampler: pytorch, or mirror, which repeats each id in customized_info.")
    ] = DEFAULTS.sampling_backend,
    tool_call_parser: Annotated[
        str | None, _flag(f"How the model calls tools: {', '.join(TOOL_CALLS)}.")
    ] = DEFAULTS.tool_call_parser,
    reasoning_parser: Annotated[
        str | None, _flag(f"How the model marks its reasoning: {', '.join(REASONING)}.")
    ] = DEFAULTS.reasoning_parser,
    skip_tokenizer_init: Annotated[
        bool, _flag("Ids in, ids out: no tokenizer, no text.", "--skip-tokenizer-init")
    ] = DEFAULTS.skip_tokenizer_init,
    enable_cache_report: Annotated[
        bool, _flag("Report cached tokens in chat usage.", "--enable-cache-report")
    ] = DEFAULTS.enable_cache_report,
    return_input_ids: Annotated[
        bool, _flag("Put the prompt's ids into sglext of every chat answer.", "--return-input-ids")
    ] = DEFAULTS.return_input_ids,
    return_output_ids: Annotated[
        bool, _flag("Put the output ids into sglext of every chat answer.", "--return-output-ids")
    ] = DEFAULTS.return_output_ids,
    random_seed: Annotated[int | None, _flag("Seed of requests that bring none.")] = DEFAULTS.random_seed,
    weight_version: Annotated[str, _flag("Version named in meta_info.")] = DEFAULTS.weight_version,
    enable_metrics: Annotated[
        bool, _flag("Answer /metrics in the Prometheus format.", "--enable-metrics")
    ] = DEFAULTS.enable_metrics,
    log_level: Annotated[str, _flag("debug, info, warning or error.")] = DEFAULTS.log_level,
    log_requests: Annotated[bool, _flag("Log each request.", "--log-requests")] = DEFAULTS.log_requests,
    send_buffer_bytes: Annotated[
        int, _flag("Kernel send buffer of a connection; small ones show slow readers soon.")
    ] = DEFAULTS.send_buffer_bytes,
    enable_faults: Annotated[
        bool, _flag("Let requests name faults; `faults` lists them.", "--enable-faults")
    ] = DEFAULTS.enable_faults,
    cpu_threads: Annotated[int, _flag("Threads of a torch operation.")] = DEFAULTS.cpu_threads,
    near_ties: Annotated[
        float, _flag("Share of greedy answers in which a near tie goes the other way; logprobs move, too.")
    ] = DEFAULTS.near_ties,
    test_retract_interval: Annotated[
        int, _flag("Test hook: retract a request every so many steps.", envvar="TOKENWIRE_TEST_RETRACT")
    ] = DEFAULTS.test_retract_interval,
    test_crash_after_stream_outputs: Annotated[
        int, _flag("Test hook: die after so many emissions.")
    ] = DEFAULTS.test_crash_after_stream_outputs,
) -> None:
    """Serve a model. The URL is printed as soon as requests are answered."""
    given = locals()
    for name in ("api_key", "admin_api_key"):
        given[name] = _from_environment(given[name])
    try:
        args = ServerArgs(**given)
    except ValueError as error:
        raise typer.Exit(_complain(error)) from error
    # torch and transformers take seconds to import: only a server pays for them, not --help.
    from tokenwire_reference.serve import EngineStoppedError
    from tokenwire_reference.serve import serve as serve_model

    try:
        serve_model(args)
    except (ValueError, OSError) as error:
        raise typer.Exit(_complain(error)) from error
    except EngineStoppedError as error:
        _complain(error)
        raise typer.Exit(1) from error


@app.command()
def faults(
    *, as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False
) -> None:
    """List the faults that a request may name where the server was started with --enable-faults."""
    from rich.console import Console

    from tokenwire_reference.faults.listing import faults_as_json, print_faults

    if as_json:
        typer.echo(faults_as_json())
    else:
        print_faults(Console())


def _from_environment(key: str | None) -> str | None:
    """A key as given, or what the variable holds that it names: lists of processes show no variables."""
    scheme, _, variable = (key or "").partition(":")
    return os.environ.get(variable, "") if scheme == "env" else key


def _complain(error: Exception) -> int:
    typer.echo(f"tokenwire-reference: {error}", err=True)
    return 2


def main() -> None:
    """Run the command line."""
    app()
