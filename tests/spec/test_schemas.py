"""The schemas accept what the prose allows and refuse what it forbids, in both validators alike."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenwire.judging.verdict import Verdict
from tokenwire.spec_files import load_schema, spec_root

NAMES = (
    "generate-request",
    "generate-response",
    "generate-event",
    "chat-request",
    "chat-response",
    "chat-chunk",
    "openai-chat-response",
    "openai-chat-chunk",
    "openai-completion-response",
    "openai-completion-chunk",
    "completion-request",
    "embedding-request",
    "encode-request",
    "tokenize-request",
    "detokenize-request",
    "vllm-chat-request",
    "vllm-completion-request",
    "vllm-generate-request",
    "vllm-derender-request",
    "completion-response",
    "completion-chunk",
    "vllm-completion-response",
    "vllm-completion-chunk",
    "vllm-chat-response",
    "vllm-chat-chunk",
    "vllm-generate-response",
    "vllm-generate-event",
    "llamacpp-completion-response",
    "llamacpp-completion-event",
    "lmdeploy-generate-response",
    "lmdeploy-generate-event",
    "responses-request",
    "responses-response",
    "responses-event",
    "messages-request",
    "messages-response",
    "messages-event",
    "results-response",
    "error",
    "report",
)

RESULTS = load_schema("results-response")["examples"]
META: dict[str, Any] = {
    "id": "r1",
    "finish_reason": {"type": "length", "length": 2},
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "cached_tokens": 1,
    "cached_tokens_details": {"device": 1, "host": 0},
    "weight_versions": [{"version": "default", "start": 0, "end": 2}],
    "input_token_logprobs": [[None, 5, None], [-1.5, 6, " b"]],
    "output_token_logprobs": [[-0.5, 11, None], [-0.25, 12, None]],
    "output_token_logprobs_length": 2,
    "output_top_logprobs": [[[-0.5, 11, None]], None],
    "output_token_ids_logprobs": [[[-9.5, 5, None]], [[-8.5, 5, None]]],
    "mirror_token_id": [11, 12],
    "e2e_latency": 0.25,
}
GENERATED: dict[str, Any] = {
    "text": " ab",
    "output_ids": [11, 12],
    "prompt_token_ids": [5, 6, 7],
    "meta_info": META,
}
UNFINISHED = {**GENERATED, "index": 1, "meta_info": {**META, "finish_reason": None}}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": None}
CHAT_ANSWER: dict[str, Any] = {
    "id": "r1",
    "object": "chat.completion",
    "created": 1795181628,
    "model": "tiny",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "", "reasoning_content": None},
            "logprobs": {"content": [{"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": []}]},
            "finish_reason": "stop",
            "matched_stop": 2,
            "prompt_token_ids": [5, 6, 7],
            "response_token_ids": [11, 2],
            "meta_info": META,
        }
    ],
    "usage": USAGE,
}
TOOL_CALL = {"id": "c", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLING: dict[str, Any] = {
    **CHAT_ANSWER,
    "choices": [
        {
            **CHAT_ANSWER["choices"][0],
            "message": {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
            "finish_reason": "tool_calls",
        }
    ],
}
REFUSED: dict[str, Any] = {"error": {"message": "no", "code": 400}}
CHUNK: dict[str, Any] = {
    "id": "r1",
    "object": "chat.completion.chunk",
    "created": 1795181628,
    "model": "tiny",
    "choices": [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None, "logprobs": None}
    ],
}
REPORT: dict[str, Any] = {
    "tool": {"name": "tokenwire", "version": "0.1.0", "spec": "v1", "profiles": 1},
    "target": {"url": "http://127.0.0.1:30000", "dialects": ["sglang-generate"], "capabilities": ["stream"]},
    "summary": {verdict.value: 0 for verdict in Verdict},
    "verdicts": [
        {
            "requirement": "ids-are-counted",
            "level": "MUST",
            "scenario": "greedy",
            "verdict": "FAIL",
            "witnesses": 7,
            "message": "one id is missing",
            "evidence": [
                {
                    "exchange": "generate/greedy",
                    "event": None,
                    "pointer": "/output_ids",
                    "start": 0,
                    "end": 40,
                    "time": 0.5,
                    "excerpt": "[11]",
                    "expected": 2,
                    "actual": [1],
                }
            ],
        }
    ],
    "exit_status": 1,
    "footer": True,
}
GENERATE_REQUEST: dict[str, Any] = {
    "input_ids": [5, 6, 7],
    "sampling_params": {
        "temperature": 0,
        "max_new_tokens": 2,
        "stop": ["x"],
        "top_k": -1,
        "stream_interval": 4,
    },
    "stream": True,
    "return_logprob": True,
    "top_logprobs_num": 2,
    "token_ids_logprob": [5],
    "logprob_start_len": 0,
    "return_prompt_token_ids": True,
}
CHAT_REQUEST: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hello"}],
    "input_ids": [5, 6, 7],
    "max_tokens": 4,
    "temperature": 0,
    "return_meta_info": True,
}

MESSAGES = [{"role": "user", "content": "Hello"}]
OTHER_DOORS: dict[str, dict[str, Any]] = {
    "completion-request": {"prompt": [[5, 6], [7]], "max_tokens": 4, "echo": True, "return_token_ids": True},
    "embedding-request": {"input": ["a", "b"], "return_prompt_token_ids": True},
    "encode-request": {"input_ids": [[5], [6, 7]], "return_prompt_token_ids": True},
    "tokenize-request": {"prompt": "a", "add_special_tokens": True},
    "detokenize-request": {"tokens": [[5], [6, 7]], "skip_special_tokens": False},
    "vllm-chat-request": {"messages": MESSAGES, "return_token_ids": True, "logprobs": None},
    "vllm-completion-request": {"prompt": [5, 6], "return_token_ids": True, "stream": None},
    "vllm-generate-request": {"token_ids": [5, 6], "sampling_params": {"max_tokens": 4}, "stream": True},
    "vllm-derender-request": {
        "chat_request": {"messages": MESSAGES},
        "generate_response": {"choices": [{"index": 0, "token_ids": [5, 6], "finish_reason": "stop"}]},
        "stream_state": {"output_token_ids": [5], "output_chunk_lens": [1]},
    },
}
"""A good request for each of the doors beside /generate and chat, by the name of its schema."""

OPENAI_ANSWER: dict[str, Any] = {
    "id": "c1",
    "object": "chat.completion",
    "created": 0,
    "model": "tiny",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "a b", "refusal": None},
            "logprobs": {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]},
            "finish_reason": "stop",
        }
    ],
    "usage": USAGE,
}
OPENAI_CHUNK: dict[str, Any] = {
    "id": "c1",
    "object": "chat.completion.chunk",
    "created": 0,
    "model": "tiny",
    "choices": [
        {"index": 0, "delta": {"role": "assistant", "content": "a"}, "logprobs": None, "finish_reason": None}
    ],
    "usage": None,
}

LISTS = {
    "tokens": ["a", ""],
    "token_logprobs": [None, -0.5],
    "top_logprobs": [None, {"a": -0.5, "b": -1.5}],
    "text_offset": [0, 1],
}
COMPLETION_HEAD = {"id": "c1", "object": "text_completion", "created": 0, "model": "tiny"}
COMPLETION: dict[str, Any] = {
    **COMPLETION_HEAD,
    "choices": [
        {
            "index": 0,
            "text": "ab",
            "logprobs": LISTS,
            "finish_reason": "stop",
            "matched_stop": "c",
            "token_ids": [11, 12],
            "prompt_token_ids": [5, 6],
        }
    ],
    "usage": USAGE,
}
COMPLETION_CHUNK: dict[str, Any] = {
    **COMPLETION_HEAD,
    "choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": None, "token_ids": [11]}],
    "usage": None,
}
RANKED = {"logprob": -0.5, "rank": 1, "decoded_token": "b"}
LMDEPLOY: dict[str, Any] = {
    "text": "ab",
    "output_ids": [11, 12],
    "meta_info": {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "finish_reason": {"type": "length"},
        "output_token_logprobs": [[-0.5, 11], [-0.25, 12]],
        "routed_experts": None,
    },
}
LMDEPLOY_EVENT: dict[str, Any] = {
    "text": "a",
    "output_ids": [11],
    "meta_info": {
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "finish_reason": None,
        "output_token_logprobs": None,
    },
}
_NO_HEAD: dict[str, Any] = {"id": "", "object": "", "created": 0, "model": ""}
FILTER_NOTE_ON_PROMPT = {**_NO_HEAD, "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
FILTER_NOTE = {
    **_NO_HEAD,
    "choices": [
        {
            "index": 0,
            "finish_reason": None,
            "content_filter_results": {"hate": {"filtered": False, "severity": "safe"}},
            "content_filter_offsets": {"check_offset": 44, "start_offset": 44, "end_offset": 198},
        }
    ],
    "usage": None,
}
OPENAI_COMPLETION: dict[str, Any] = {
    **COMPLETION_HEAD,
    "choices": [{"index": 0, "text": "ab", "logprobs": LISTS, "finish_reason": "stop"}],
    "usage": USAGE,
}
OPENAI_COMPLETION_CHUNK: dict[str, Any] = {**COMPLETION_HEAD, "choices": [{"index": 0, "text": "a"}]}
VLLM_COMPLETION: dict[str, Any] = {
    **COMPLETION_HEAD,
    "choices": [
        {
            "index": 0,
            "text": "ab",
            "logprobs": LISTS,
            "finish_reason": "stop",
            "stop_reason": 2,
            "token_ids": [11, 2],
            "prompt_token_ids": None,
            "prompt_logprobs": [None, {"6": RANKED}],
        }
    ],
    "usage": USAGE,
}
VLLM_COMPLETION_CHUNK: dict[str, Any] = {
    **COMPLETION_HEAD,
    "choices": [
        {"index": 0, "text": "", "logprobs": None, "finish_reason": None, "token_ids": None},
        {"index": 1, "text": "a", "logprobs": LISTS, "finish_reason": "length", "token_ids": [11]},
    ],
}
VLLM_CHAT: dict[str, Any] = {
    **OPENAI_ANSWER,
    "choices": [{**OPENAI_ANSWER["choices"][0], "stop_reason": None, "token_ids": [11, 12]}],
    "prompt_token_ids": [5, 6],
    "prompt_logprobs": [None, {"6": RANKED}],
}
VLLM_CHAT_CHUNK: dict[str, Any] = {
    **OPENAI_CHUNK,
    "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "repetition", "token_ids": [11]}],
    "prompt_token_ids": [5, 6],
}
BY_ID = {"token_id": 11, "logprob": -0.5, "rank": 1, "top_logprobs": [{"token_id": 11, "logprob": -0.5}]}
VLLM_GENERATED: dict[str, Any] = {
    "request_id": "r1",
    "usage": USAGE,
    "output_mode": "tokens",
    "prompt_token_ids": None,
    "choices": [
        {
            "index": 0,
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": [11],
            "logprobs": {"content": [BY_ID]},
            "weight_versions": [{"version": "default", "start": 0, "end": 1}],
        }
    ],
}
VLLM_GENERATED_EVENT: dict[str, Any] = {
    "request_id": "r1",
    "usage": None,
    "choices": [{"index": 0, "finish_reason": None, "token_ids": [], "logprobs": None}],
}
LLAMACPP_LOGPROB = {
    "id": 11,
    "token": "a",
    "bytes": [97],
    "logprob": -0.5,
    "top_logprobs": [{"id": 11, "logprob": 0}],
}
LLAMACPP_PART: dict[str, Any] = {
    "index": 0,
    "content": "a",
    "tokens": [11],
    "stop": False,
    "tokens_predicted": 1,
    "tokens_evaluated": 2,
    "completion_probabilities": [LLAMACPP_LOGPROB],
}
LLAMACPP_ANSWER: dict[str, Any] = {
    **LLAMACPP_PART,
    "stop": True,
    "stop_type": "word",
    "stopping_word": "b",
    "truncated": False,
    "timings": {"predicted_n": 1},
}

SAID = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": []}
RESPONSE: dict[str, Any] = {
    **{"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed"},
    "output": [{**SAID, "content": [{"type": "output_text", "text": "Yes.", "annotations": []}]}],
    "usage": {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12},
}
DELTA_AT = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
RESPONSE_EVENT: dict[str, Any] = {
    "type": "response.output_text.delta",
    "sequence_number": 3,
    **DELTA_AT,
    "delta": "Yes.",
}
MESSAGE: dict[str, Any] = {
    **{"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"},
    "content": [{"type": "text", "text": "Yes."}],
    "usage": {"input_tokens": 9, "output_tokens": 3},
}
MESSAGE_EVENT: dict[str, Any] = {
    "type": "content_block_delta",
    "index": 0,
    "delta": {"type": "text_delta", "text": "Yes."},
}
GOOD: list[tuple[str, Any]] = [
    *(("results-response", example) for example in RESULTS),
    ("responses-request", {"input": "Is it?"}),
    ("responses-response", RESPONSE),
    ("responses-event", RESPONSE_EVENT),
    ("responses-event", {"type": "response.completed", "sequence_number": 9, "response": RESPONSE}),
    ("responses-event", {"type": "response.of_a_fork", "anything": 1}),
    ("messages-request", {"max_tokens": 16, "messages": [{"role": "user", "content": "Is it?"}]}),
    ("messages-response", MESSAGE),
    ("messages-event", MESSAGE_EVENT),
    ("messages-event", {"type": "ping"}),
    ("completion-response", COMPLETION),
    ("lmdeploy-generate-response", LMDEPLOY),
    ("lmdeploy-generate-event", LMDEPLOY_EVENT),
    ("openai-completion-response", OPENAI_COMPLETION),
    ("openai-completion-response", {**OPENAI_COMPLETION, "usage": None}),
    ("openai-completion-chunk", OPENAI_COMPLETION_CHUNK),
    ("openai-completion-chunk", {**COMPLETION_HEAD, "choices": [], "usage": USAGE}),
    ("openai-completion-chunk", {"error": {"message": "no", "type": "server_error"}}),
    ("completion-chunk", COMPLETION_CHUNK),
    ("completion-chunk", {**COMPLETION_CHUNK, "choices": [], "usage": USAGE}),
    ("completion-chunk", {"error": {"object": "error", "message": "no", "type": "X", "code": 503}}),
    ("vllm-completion-response", VLLM_COMPLETION),
    ("vllm-completion-chunk", VLLM_COMPLETION_CHUNK),
    ("vllm-chat-response", VLLM_CHAT),
    ("vllm-chat-chunk", VLLM_CHAT_CHUNK),
    ("vllm-chat-chunk", {**VLLM_CHAT_CHUNK, "choices": [], "usage": USAGE, "prompt_token_ids": None}),
    ("vllm-generate-response", VLLM_GENERATED),
    ("vllm-generate-event", VLLM_GENERATED_EVENT),
    ("vllm-generate-event", {"error": {"message": "no", "type": "BadRequestError", "code": 400}}),
    ("llamacpp-completion-response", LLAMACPP_ANSWER),
    ("llamacpp-completion-response", [LLAMACPP_ANSWER, LLAMACPP_ANSWER]),
    ("llamacpp-completion-event", LLAMACPP_PART),
    ("llamacpp-completion-event", LLAMACPP_ANSWER),
    ("generate-response", GENERATED),
    ("generate-response", [GENERATED, GENERATED]),
    (
        "generate-response",
        {"output_ids": [], "meta_info": {**META, "finish_reason": {"type": "abort", "message": "x"}}},
    ),
    ("generate-event", GENERATED),
    ("generate-event", UNFINISHED),
    (
        "generate-event",
        {"error": {"message": "no", "type": "invalid_request_error", "code": 400, "retryable": False}},
    ),
    ("chat-response", CHAT_ANSWER),
    ("chat-response", CALLING),
    ("chat-chunk", CHUNK),
    ("chat-chunk", {**CHUNK, "choices": [], "usage": USAGE}),
    ("chat-chunk", {"error": {"object": "error", "message": "no", "type": "X", "param": None, "code": 503}}),
    ("openai-chat-response", OPENAI_ANSWER),
    ("openai-chat-response", {**OPENAI_ANSWER, "usage": None}),
    ("openai-chat-chunk", OPENAI_CHUNK),
    (
        "openai-chat-chunk",
        {**OPENAI_CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]},
    ),
    ("openai-chat-chunk", {**OPENAI_CHUNK, "choices": [], "usage": USAGE}),
    ("openai-chat-chunk", {"error": {"message": "no", "type": "server_error"}}),
    ("openai-chat-chunk", FILTER_NOTE_ON_PROMPT),
    ("openai-chat-chunk", FILTER_NOTE),
    (
        "openai-chat-chunk",
        {**OPENAI_CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "eos_token"}]},
    ),
    ("error", {"object": "error", "message": "no", "type": "BadRequest", "param": None, "code": 400}),
    ("error", {"error": {"message": "no"}}),
    ("error", {"error": "invalid type"}),
    ("generate-request", GENERATE_REQUEST),
    ("generate-request", {"text": "Hello", "unknown_key": 1}),
    (
        "generate-request",
        {"input_ids": [[5], [6, 7]], "sampling_params": [{"n": 1}, {}], "return_logprob": [True, False]},
    ),
    (
        "generate-request",
        {"input_ids": [5], "sampling_params": {"stream_interval": None, "max_new_tokens": 0}},
    ),
    ("chat-request", CHAT_REQUEST),
    (
        "chat-request",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "unknown": 1},
    ),
    *OTHER_DOORS.items(),
    ("report", REPORT),
    ("report", {**REPORT, "target": {"capture": "run.jsonl"}}),
]

REMOVED = object()

PLANTED: list[tuple[str, Any, str, Any]] = [
    ("results-response", RESULTS[0], "/data/0/index", REMOVED),
    ("results-response", RESULTS[0], "/data/0/embedding", [[0.5]]),
    ("results-response", RESULTS[1], "/results/0/relevance_score", None),
    ("results-response", RESULTS[2], "/0/meta_info", REMOVED),
    ("responses-request", {"input": "Is it?"}, "/input", 7),
    ("responses-response", RESPONSE, "/output/0/content/0/text", REMOVED),
    ("responses-response", RESPONSE, "/status", "done"),
    ("responses-event", RESPONSE_EVENT, "/item_id", REMOVED),
    (
        "messages-request",
        {"max_tokens": 16, "messages": [{"role": "user", "content": "a"}]},
        "/max_tokens",
        REMOVED,
    ),
    ("messages-response", MESSAGE, "/stop_reason", REMOVED),
    ("messages-response", MESSAGE, "/content/0/text", None),
    ("messages-event", MESSAGE_EVENT, "/delta/text", REMOVED),
    # (schema, sample, JSON pointer, what is put there)
    ("generate-response", GENERATED, "/output_ids/0", 11.5),
    ("generate-response", GENERATED, "/output_ids/0", -1),
    ("generate-response", GENERATED, "/output_ids/0", 2**31),
    ("generate-response", GENERATED, "/output_ids/0", True),
    ("generate-response", GENERATED, "/output_ids/0", None),
    ("generate-response", GENERATED, "/output_ids/0", "11"),
    ("generate-response", GENERATED, "/output_ids", None),
    ("generate-response", GENERATED, "/output_ids", REMOVED),
    ("generate-response", GENERATED, "/prompt_token_ids", None),
    ("generate-response", GENERATED, "/text", None),
    ("generate-response", GENERATED, "/meta_info", REMOVED),
    ("generate-response", GENERATED, "/meta_info/finish_reason", None),
    ("generate-response", GENERATED, "/meta_info/finish_reason", "stop"),
    ("generate-response", GENERATED, "/meta_info/finish_reason", {"type": "eos"}),
    ("generate-response", GENERATED, "/meta_info/finish_reason", {"type": "length"}),
    ("generate-response", GENERATED, "/meta_info/completion_tokens", REMOVED),
    ("generate-response", GENERATED, "/meta_info/completion_tokens", -1),
    ("generate-response", GENERATED, "/meta_info/completion_tokens", True),
    ("generate-response", GENERATED, "/meta_info/cached_tokens_details", {"device": 1}),
    ("generate-response", GENERATED, "/meta_info/output_token_logprobs/0", [-0.5, 11]),
    ("generate-response", GENERATED, "/meta_info/output_token_logprobs/0", -0.5),
    ("generate-response", GENERATED, "/meta_info/output_token_logprobs/0/0", "-0.5"),
    ("generate-response", GENERATED, "/meta_info/output_token_logprobs/0/1", None),
    ("generate-response", GENERATED, "/meta_info/output_top_logprobs", {}),
    ("generate-response", [GENERATED], "", []),
    ("generate-response", [GENERATED, GENERATED], "/1/output_ids", REMOVED),
    ("generate-event", UNFINISHED, "/index", -1),
    ("generate-event", UNFINISHED, "/prompt_token_ids", None),
    ("generate-event", UNFINISHED, "/meta_info/finish_reason", {"type": "unknown"}),
    ("generate-event", UNFINISHED, "/meta_info/id", REMOVED),
    ("generate-event", UNFINISHED, "", [UNFINISHED]),
    ("generate-event", UNFINISHED, "/error", "half an error"),
    ("generate-event", REFUSED, "/error/message", REMOVED),
    ("generate-event", REFUSED, "/error/message", " "),
    ("generate-event", REFUSED, "/error/code", REMOVED),
    ("generate-event", REFUSED, "/error/code", 200),
    ("generate-event", REFUSED, "/error", "no"),
    ("generate-event", GENERATED, "/error", REFUSED["error"]),
    ("generate-response", GENERATED, "/meta_info/output_token_logprobs/0/0", None),
    ("generate-response", GENERATED, "/meta_info/prompt_tokens", REMOVED),
    ("generate-response", GENERATED, "/meta_info/routed_experts", 7),
    ("generate-response", GENERATED, "/meta_info/output_token_sampling_mask", 7),
    ("generate-response", GENERATED, "/meta_info/hidden_states", ["x"]),
    ("generate-response", GENERATED, "/meta_info/cached_tokens_details/storage", 0),
    ("chat-response", CHAT_ANSWER, "/choices/0/logprobs", {}),
    ("chat-response", CHAT_ANSWER, "/choices/0/logprobs", {"tokens": ["a"], "token_logprobs": [-0.5]}),
    ("chat-response", CHAT_ANSWER, "/choices/0/logprobs/content/0/bytes", REMOVED),
    ("chat-response", CHAT_ANSWER, "/choices/0/logprobs/content/0/top_logprobs", REMOVED),
    (
        "chat-response",
        CHAT_ANSWER,
        "/choices/0/logprobs/content/0/top_logprobs",
        [{"token": "a", "logprob": -0.5, "bytes": "a"}],
    ),
    ("chat-response", CHAT_ANSWER, "/choices/0/message/tool_calls", [{}]),
    ("chat-response", CALLING, "/choices/0/message/tool_calls/0/function/arguments", {"a": 1}),
    ("chat-response", CALLING, "/choices/0/message/tool_calls/0/function/name", REMOVED),
    ("chat-chunk", CHUNK, "/choices/0/delta/tool_calls", [{}]),
    ("chat-chunk", CHUNK, "/choices/0/finish_reason", REMOVED),
    ("chat-chunk", CHUNK, "/choices/0/prompt_token_ids", None),
    ("chat-chunk", CHUNK, "/choices/0/token_ids", ["1"]),
    ("completion-chunk", COMPLETION_CHUNK, "/choices/0/finish_reason", REMOVED),
    ("vllm-completion-chunk", VLLM_COMPLETION_CHUNK, "/choices/0/finish_reason", 1),
    ("vllm-chat-chunk", VLLM_CHAT_CHUNK, "/choices/0/delta/reasoning", 5),
    ("vllm-generate-event", VLLM_GENERATED_EVENT, "/choices/0/finish_reason", 1),
    ("chat-response", CHAT_ANSWER, "/object", "chat.completion.chunk"),
    ("chat-response", CHAT_ANSWER, "/choices", []),
    ("chat-response", CHAT_ANSWER, "/choices/0/message/role", "user"),
    ("chat-response", CHAT_ANSWER, "/choices/0/finish_reason", None),
    ("chat-response", CHAT_ANSWER, "/choices/0/finish_reason", "eos"),
    ("chat-response", CHAT_ANSWER, "/choices/0/prompt_token_ids", None),
    ("chat-response", CHAT_ANSWER, "/choices/0/response_token_ids", None),
    ("chat-response", CHAT_ANSWER, "/choices/0/response_token_ids/0", 0.5),
    ("chat-response", CHAT_ANSWER, "/choices/0/meta_info", None),
    ("chat-response", CHAT_ANSWER, "/choices/0/meta_info/finish_reason", None),
    ("chat-response", CHAT_ANSWER, "/usage/total_tokens", REMOVED),
    ("chat-chunk", CHUNK, "/choices/0/delta", REMOVED),
    ("chat-chunk", CHUNK, "/choices/0/delta/role", "user"),
    ("chat-chunk", CHUNK, "/choices/0/finish_reason", "done"),
    ("chat-chunk", CHUNK, "/choices", None),
    ("openai-chat-response", OPENAI_ANSWER, "/object", "chat.completion.chunk"),
    ("openai-chat-response", OPENAI_ANSWER, "/choices", []),
    ("openai-chat-response", OPENAI_ANSWER, "/choices/0/message/content", 7),
    ("openai-chat-response", OPENAI_ANSWER, "/choices/0/message/content", REMOVED),
    ("openai-chat-response", OPENAI_ANSWER, "/choices/0/message/role", "user"),
    ("openai-chat-response", OPENAI_ANSWER, "/choices/0/finish_reason", None),
    ("openai-chat-response", OPENAI_ANSWER, "/choices/0/finish_reason", ""),
    ("openai-chat-response", OPENAI_ANSWER, "/choices/0/logprobs/content/0/logprob", None),
    ("openai-chat-response", OPENAI_ANSWER, "/usage/total_tokens", REMOVED),
    ("openai-chat-chunk", OPENAI_CHUNK, "/choices/0/delta", REMOVED),
    ("openai-chat-chunk", OPENAI_CHUNK, "/choices/0/delta/role", "user"),
    ("openai-chat-chunk", OPENAI_CHUNK, "/choices/0/finish_reason", 7),
    ("openai-chat-chunk", FILTER_NOTE, "/choices/0/content_filter_results", REMOVED),
    ("openai-chat-chunk", FILTER_NOTE, "/choices/0/delta", {}),
    ("openai-chat-chunk", FILTER_NOTE, "/object", "chat.completion"),
    ("openai-chat-chunk", OPENAI_CHUNK, "/choices", None),
    ("openai-chat-chunk", OPENAI_CHUNK, "/error", "half an error"),
    ("lmdeploy-generate-response", LMDEPLOY, "/output_ids/0", "11"),
    ("lmdeploy-generate-response", LMDEPLOY, "/meta_info/finish_reason", "length"),
    ("lmdeploy-generate-response", LMDEPLOY, "/meta_info/output_token_logprobs/0", [-0.5, 11, "a"]),
    ("lmdeploy-generate-response", LMDEPLOY, "/text", REMOVED),
    ("lmdeploy-generate-event", LMDEPLOY_EVENT, "/meta_info/completion_tokens", -1),
    ("openai-completion-response", OPENAI_COMPLETION, "/object", "chat.completion"),
    ("openai-completion-response", OPENAI_COMPLETION, "/choices", []),
    ("openai-completion-response", OPENAI_COMPLETION, "/choices/0/text", None),
    ("openai-completion-response", OPENAI_COMPLETION, "/choices/0/finish_reason", None),
    ("openai-completion-response", OPENAI_COMPLETION, "/choices/0/logprobs/tokens/0", 7),
    ("openai-completion-chunk", OPENAI_COMPLETION_CHUNK, "/object", "text_completion.chunk"),
    ("openai-completion-chunk", OPENAI_COMPLETION_CHUNK, "/choices/0/text", REMOVED),
    ("openai-completion-chunk", OPENAI_COMPLETION_CHUNK, "/error", "half an error"),
    ("completion-response", COMPLETION, "/object", "chat.completion"),
    ("completion-response", COMPLETION, "/choices", []),
    ("completion-response", COMPLETION, "/choices/0/text", None),
    ("completion-response", COMPLETION, "/choices/0/finish_reason", None),
    ("completion-response", COMPLETION, "/choices/0/finish_reason", "repetition"),
    ("completion-response", COMPLETION, "/choices/0/token_ids", None),
    ("completion-response", COMPLETION, "/choices/0/token_ids/0", -1),
    ("completion-response", COMPLETION, "/choices/0/prompt_token_ids/0", "5"),
    ("completion-response", COMPLETION, "/choices/0/logprobs/token_logprobs/1", "-0.5"),
    ("completion-response", COMPLETION, "/choices/0/logprobs/text_offset", REMOVED),
    ("completion-response", COMPLETION, "/choices/0/logprobs/top_logprobs/1", [-0.5]),
    ("completion-response", COMPLETION, "/choices/0/matched_stop", -1),
    ("completion-response", COMPLETION, "/usage", REMOVED),
    ("completion-chunk", COMPLETION_CHUNK, "/choices/0/text", REMOVED),
    ("completion-chunk", COMPLETION_CHUNK, "/choices/0/finish_reason", "eos"),
    ("completion-chunk", COMPLETION_CHUNK, "/choices/0/token_ids/0", 0.5),
    ("completion-chunk", COMPLETION_CHUNK, "/choices", None),
    ("completion-chunk", COMPLETION_CHUNK, "/error", "half an error"),
    ("vllm-completion-response", VLLM_COMPLETION, "/choices/0/finish_reason", None),
    ("vllm-completion-response", VLLM_COMPLETION, "/choices/0/finish_reason", "content_filter"),
    ("vllm-completion-response", VLLM_COMPLETION, "/choices/0/token_ids/0", True),
    ("vllm-completion-response", VLLM_COMPLETION, "/choices/0/prompt_logprobs/1", {"b": RANKED}),
    ("vllm-completion-response", VLLM_COMPLETION, "/choices/0/prompt_logprobs/1/6/logprob", None),
    ("vllm-completion-chunk", VLLM_COMPLETION_CHUNK, "/choices/1/logprobs/tokens", REMOVED),
    ("vllm-completion-chunk", VLLM_COMPLETION_CHUNK, "/choices/0/index", REMOVED),
    ("vllm-chat-response", VLLM_CHAT, "/choices/0/message/role", "user"),
    ("vllm-chat-response", VLLM_CHAT, "/choices/0/token_ids/0", None),
    ("vllm-chat-response", VLLM_CHAT, "/prompt_token_ids/0", "5"),
    ("vllm-chat-response", VLLM_CHAT, "/prompt_logprobs/1", -0.5),
    ("vllm-chat-chunk", VLLM_CHAT_CHUNK, "/choices/0/delta", REMOVED),
    ("vllm-chat-chunk", VLLM_CHAT_CHUNK, "/choices/0/finish_reason", "eos"),
    ("vllm-chat-chunk", VLLM_CHAT_CHUNK, "/choices/0/token_ids", "11"),
    ("vllm-generate-response", VLLM_GENERATED, "/choices", []),
    ("vllm-generate-response", VLLM_GENERATED, "/choices/0/token_ids", None),
    ("vllm-generate-response", VLLM_GENERATED, "/choices/0/finish_reason", None),
    ("vllm-generate-response", VLLM_GENERATED, "/choices/0/logprobs/content/0/token_id", REMOVED),
    ("vllm-generate-response", VLLM_GENERATED, "/usage", None),
    ("vllm-generate-event", VLLM_GENERATED_EVENT, "/choices/0/token_ids", REMOVED),
    ("vllm-generate-event", VLLM_GENERATED_EVENT, "/request_id", 1),
    ("vllm-generate-event", VLLM_GENERATED_EVENT, "/output_mode", "both"),
    ("llamacpp-completion-response", LLAMACPP_ANSWER, "/stop", False),
    ("llamacpp-completion-response", LLAMACPP_ANSWER, "/stop_type", "stop"),
    ("llamacpp-completion-response", LLAMACPP_ANSWER, "/tokens/0", "a"),
    ("llamacpp-completion-response", LLAMACPP_ANSWER, "/tokens_predicted", REMOVED),
    ("llamacpp-completion-response", [LLAMACPP_ANSWER], "", []),
    ("llamacpp-completion-event", LLAMACPP_PART, "/content", None),
    ("llamacpp-completion-event", LLAMACPP_PART, "/stop", REMOVED),
    ("llamacpp-completion-event", LLAMACPP_PART, "/completion_probabilities/0/id", None),
    ("llamacpp-completion-event", LLAMACPP_ANSWER, "/stop_type", REMOVED),
    ("error", {"error": {"message": "no"}}, "", {}),
    ("error", {"error": {"message": "no"}}, "/error", {}),
    ("error", {"error": {"message": "no"}}, "/error", ""),
    ("error", {"error": {"message": "no"}}, "/error/message", ""),
    ("error", {"error": {"message": "no"}}, "", {"detail": "Not Found"}),
    ("error", {"error": {"message": "no"}}, "", "no"),
    ("generate-request", GENERATE_REQUEST, "/input_ids", REMOVED),
    ("generate-request", GENERATE_REQUEST, "/input_ids", []),
    ("generate-request", GENERATE_REQUEST, "/input_ids", [[5], []]),
    ("generate-request", GENERATE_REQUEST, "/input_ids", [5, [6]]),
    ("generate-request", GENERATE_REQUEST, "/input_ids", [[[5]]]),
    ("generate-request", GENERATE_REQUEST, "/input_ids", "5 6"),
    ("generate-request", GENERATE_REQUEST, "/input_ids", {"0": 5}),
    ("generate-request", GENERATE_REQUEST, "/input_ids/1", True),
    ("generate-request", GENERATE_REQUEST, "/input_ids/1", 6.5),
    ("generate-request", GENERATE_REQUEST, "/input_ids/1", -1),
    ("generate-request", GENERATE_REQUEST, "/input_ids/1", None),
    ("generate-request", GENERATE_REQUEST, "/stream", None),
    ("generate-request", GENERATE_REQUEST, "/stream", 1),
    ("generate-request", GENERATE_REQUEST, "/return_prompt_token_ids", 1),
    ("generate-request", GENERATE_REQUEST, "/top_logprobs_num", "2"),
    ("generate-request", GENERATE_REQUEST, "/top_logprobs_num", -1),
    ("generate-request", GENERATE_REQUEST, "/logprob_start_len", -2),
    ("generate-request", GENERATE_REQUEST, "/token_ids_logprob", 5),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/no_such_parameter", 1),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/n", 0),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/n", None),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/n", True),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/max_new_tokens", -1),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/max_new_tokens", "4"),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/temperature", -0.1),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/temperature", True),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/top_p", 0),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/top_p", 1.1),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/top_k", 0),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/top_k", -2),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/min_p", 1.5),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/frequency_penalty", 2.5),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/presence_penalty", -2.5),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/repetition_penalty", 0),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/stop", ["x"] * 33),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/stop", [1]),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/stop_token_ids", [-5]),
    ("generate-request", GENERATE_REQUEST, "/sampling_params/logit_bias", {"a": 1}),
    ("generate-request", GENERATE_REQUEST, "/sampling_params", {"regex": "a", "json_schema": "{}"}),
    ("chat-request", CHAT_REQUEST, "/messages", []),
    ("chat-request", CHAT_REQUEST, "/messages", REMOVED),
    ("chat-request", CHAT_REQUEST, "/messages/0/role", "alien"),
    ("chat-request", CHAT_REQUEST, "/input_ids", []),
    ("chat-request", CHAT_REQUEST, "/input_ids", [[5]]),
    ("chat-request", CHAT_REQUEST, "/input_ids", [True]),
    ("chat-request", CHAT_REQUEST, "/n", 0),
    ("chat-request", CHAT_REQUEST, "/max_tokens", -1),
    ("chat-request", CHAT_REQUEST, "/temperature", -1),
    ("chat-request", CHAT_REQUEST, "/return_meta_info", "yes"),
    ("completion-request", OTHER_DOORS["completion-request"], "/prompt", REMOVED),
    ("completion-request", OTHER_DOORS["completion-request"], "/prompt/0/0", -1),
    ("completion-request", OTHER_DOORS["completion-request"], "/prompt/0/0", True),
    ("completion-request", OTHER_DOORS["completion-request"], "/max_tokens", "4"),
    ("completion-request", OTHER_DOORS["completion-request"], "/echo", 1),
    ("embedding-request", OTHER_DOORS["embedding-request"], "/input", REMOVED),
    ("embedding-request", OTHER_DOORS["embedding-request"], "/input", [[5.5]]),
    ("embedding-request", OTHER_DOORS["embedding-request"], "/return_prompt_token_ids", "yes"),
    ("encode-request", OTHER_DOORS["encode-request"], "/input_ids/0/0", 2**31),
    ("encode-request", OTHER_DOORS["encode-request"], "/return_prompt_token_ids", 1),
    ("tokenize-request", OTHER_DOORS["tokenize-request"], "/prompt", 5),
    ("tokenize-request", OTHER_DOORS["tokenize-request"], "/add_special_tokens", "yes"),
    ("detokenize-request", OTHER_DOORS["detokenize-request"], "/tokens", REMOVED),
    ("detokenize-request", OTHER_DOORS["detokenize-request"], "/tokens/0/0", -1),
    ("detokenize-request", OTHER_DOORS["detokenize-request"], "/skip_special_tokens", 0),
    ("vllm-chat-request", OTHER_DOORS["vllm-chat-request"], "/messages", REMOVED),
    ("vllm-chat-request", OTHER_DOORS["vllm-chat-request"], "/return_token_ids", 1),
    ("vllm-completion-request", OTHER_DOORS["vllm-completion-request"], "/prompt", REMOVED),
    ("vllm-completion-request", OTHER_DOORS["vllm-completion-request"], "/prompt/0", -1),
    ("vllm-completion-request", OTHER_DOORS["vllm-completion-request"], "/return_token_ids", 1),
    ("vllm-generate-request", OTHER_DOORS["vllm-generate-request"], "/token_ids", REMOVED),
    ("vllm-generate-request", OTHER_DOORS["vllm-generate-request"], "/token_ids", []),
    ("vllm-generate-request", OTHER_DOORS["vllm-generate-request"], "/token_ids/0", -1),
    ("vllm-generate-request", OTHER_DOORS["vllm-generate-request"], "/sampling_params", REMOVED),
    ("vllm-generate-request", OTHER_DOORS["vllm-generate-request"], "/stream", 1),
    ("vllm-generate-request", OTHER_DOORS["vllm-generate-request"], "/output_mode", "words"),
    *(
        ("vllm-derender-request", OTHER_DOORS["vllm-derender-request"], pointer, value)
        for pointer, value in (
            ("/chat_request", "Hello"),
            ("/generate_response/choices", REMOVED),
            ("/generate_response/choices/0/token_ids/0", -1),
            ("/generate_response/choices/0/index", -1),
            ("/generate_response/choices/0/finish_reason", "odd"),
            ("/stream_state/output_chunk_lens/0", 0),
        )
    ),
    ("report", REPORT, "/footer", REMOVED),
    ("report", REPORT, "/footer", False),
    ("report", REPORT, "/exit_status", 5),
    ("report", REPORT, "/target", {}),
    ("report", REPORT, "/summary/PASS", REMOVED),
    ("report", REPORT, "/verdicts/0/verdict", "OK"),
    ("report", REPORT, "/verdicts/0/requirement", "Series In Lockstep"),
    ("report", REPORT, "/verdicts/0/evidence/0/pointer", None),
    ("report", REPORT, "/verdicts/0/evidence/0/end", -1),
]


def with_value(sample: Any, pointer: str, value: Any) -> Any:
    """A copy of a sample with another value, or none, at a JSON pointer."""
    if not pointer:
        return value
    changed = copy.deepcopy(sample)
    *parents, last = pointer.lstrip("/").split("/")
    place = changed
    for key in parents:
        place = place[int(key) if isinstance(place, list) else key]
    if value is REMOVED:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return changed


def judged(name: str, value: Any) -> tuple[bool, bool]:
    """What the two validators say, in the order jsonschema, jsonschema_rs."""
    schema = load_schema(name)
    return jsonschema.Draft202012Validator(schema).is_valid(value), jsonschema_rs.is_valid(schema, value)


@pytest.mark.parametrize("name", NAMES)
def test_schema_is_valid_against_the_metaschema(name):
    schema = load_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert jsonschema_rs.meta.is_valid(schema)


@pytest.mark.parametrize("name", NAMES)
def test_schema_says_what_it_is(name):
    schema = load_schema(name)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"urn:tokenwire:schema:v1:{name}"
    assert schema["title"]
    assert schema["description"]


def test_no_schema_goes_untested():
    files = {path.stem for path in (spec_root() / "schemas").glob("*.json")}
    assert files - {"exchange"} == set(NAMES)
    assert {name for name, _ in GOOD} == set(NAMES)
    assert {name for name, *_ in PLANTED} == set(NAMES)


@pytest.mark.parametrize("name", [*NAMES, "exchange"])
def test_the_examples_of_a_schema_are_valid(name):
    examples = load_schema(name)["examples"]
    assert examples
    for example in examples:
        assert judged(name, example) == (True, True)


def test_definitions_of_one_name_are_the_same_in_every_schema():
    seen: dict[str, Any] = {}
    for name in NAMES:
        for key, definition in load_schema(name).get("$defs", {}).items():
            assert seen.setdefault(key, definition) == definition, f"{name}: {key}"


def test_the_report_lists_the_verdicts_of_the_suite():
    schema = load_schema("report")
    assert schema["$defs"]["verdict"]["enum"] == [verdict.value for verdict in Verdict]
    assert set(schema["properties"]["summary"]["required"]) == {verdict.value for verdict in Verdict}


@pytest.mark.parametrize(("name", "sample"), GOOD)
def test_good_samples_are_accepted(name, sample):
    assert judged(name, sample) == (True, True)


@pytest.mark.parametrize(("name", "sample", "pointer", "value"), PLANTED)
def test_planted_defects_are_refused(name, sample, pointer, value):
    assert judged(name, sample) == (True, True)
    assert judged(name, with_value(sample, pointer, value)) == (False, False)


@pytest.mark.parametrize(
    "name",
    [
        "generate-response",
        "generate-event",
        "chat-response",
        "chat-chunk",
        "openai-chat-response",
        "openai-chat-chunk",
        "openai-completion-response",
        "openai-completion-chunk",
        "completion-response",
        "completion-chunk",
        "vllm-completion-response",
        "vllm-completion-chunk",
        "vllm-chat-response",
        "vllm-chat-chunk",
        "vllm-generate-response",
        "vllm-generate-event",
        "llamacpp-completion-response",
        "llamacpp-completion-event",
        "lmdeploy-generate-response",
        "lmdeploy-generate-event",
        "error",
    ],
)
@pytest.mark.parametrize("value", [{}, [], None, "", 0, [{}], {"detail": "Not Found"}, {"choices": []}])
def test_a_server_that_says_nothing_fits_no_schema(name, value):
    assert judged(name, value) == (False, False)


def test_the_content_of_any_openai_compatible_server_may_be_null_and_not_missing():
    message = {"role": "assistant", "content": None, "refusal": "No."}
    refused = with_value(OPENAI_ANSWER, "/choices/0/message", message)
    assert judged("openai-chat-response", refused) == (True, True)
    del refused["choices"][0]["message"]["content"]
    assert judged("openai-chat-response", refused) == (False, False)


_GENERATE_RESPONSE = json.dumps(load_schema("generate-response"))
"""Holds all names that have a type of their own; hypothesis draws names that stand in the source."""


@settings(deadline=None)
@given(
    key=st.text(min_size=1).filter(lambda key: json.dumps(key) not in _GENERATE_RESPONSE),
    value=st.lists(st.integers() | st.none()),
)
def test_customized_info_of_any_name_is_accepted(key, value):
    answer = with_value(GENERATED, f"/meta_info/{key.replace('/', '_')}", value)
    assert judged("generate-response", answer) == (True, True)


@settings(deadline=None)
@given(ids=st.lists(st.integers(min_value=0, max_value=2**31 - 1)))
def test_any_token_ids_are_accepted(ids):
    assert judged("generate-event", with_value(UNFINISHED, "/output_ids", ids)) == (True, True)


@settings(deadline=None)
@given(
    ids=st.lists(st.integers(min_value=0, max_value=2**31 - 1)),
    position=st.integers(min_value=0),
    intruder=st.integers(max_value=-1)
    | st.integers(min_value=2**31)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: not x.is_integer())
    | st.booleans()
    | st.none()
    | st.text()
    | st.lists(st.integers(), max_size=2),
)
def test_one_intruder_among_token_ids_is_refused(ids, position, intruder):
    place = position % (len(ids) + 1)
    assert judged(
        "generate-event", with_value(UNFINISHED, "/output_ids", [*ids[:place], intruder, *ids[place:]])
    ) == (
        False,
        False,
    )


def places(value: Any, pointer: str = "") -> list[str]:
    """JSON pointers of a value and of everything in it."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [pointer, *(place for key, child in children for place in places(child, f"{pointer}/{key}"))]


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**40), max_value=2**40)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.sampled_from(["", "stop", "length", "abort", "assistant", "error"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "message", "error", "length"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(sample=st.sampled_from(GOOD), data=st.data(), value=VALUES)
def test_validators_agree_wherever_a_value_is_replaced(sample, data, value):
    name, document = sample
    changed = with_value(document, data.draw(st.sampled_from(places(document))), value)
    python, rust = judged(name, changed)
    assert python == rust, json.dumps(changed)
