"""The openai package: chat by its own accumulator, completions by hand."""

from driver import held_choice, token_counts, torture
from openai import OpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState

CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="none", timeout=60)


def hold(base, case):
    client, asked = CLIENT.with_options(base_url=f"{base}/v1"), dict(case["request"])
    extra = {"return_token_ids": asked.pop("return_token_ids", None)}
    if case["path"] == "/v1/completions":
        return completions(client.completions.create(**asked), case)
    state = ChatCompletionStreamState()
    with client.chat.completions.create(**asked, extra_body=extra) as stream:
        for chunk in stream:
            state.handle_chunk(chunk)
            if case["leave"] and any(choice.delta.content for choice in chunk.choices):
                return {"choices": []}
    done = state.current_completion_snapshot
    usage = done.usage and token_counts(done.usage.prompt_tokens, done.usage.completion_tokens)
    return {"choices": [chat(choice, choice.message) for choice in done.choices], "usage": usage}


def chat(choice, message):
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    extra = message.model_extra or {}
    reasoning = extra.get("reasoning_content") or extra.get("reasoning")
    held = held_choice(choice.index, message.content, choice.finish_reason, reasoning, calls)
    tokens = (choice.logprobs and choice.logprobs.content) or ()
    return held | {"logprobs": [token.logprob for token in tokens]}


def completions(stream, case):
    texts, finishes, usage = {}, {}, None
    with stream:
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
                finishes[choice.index] = choice.finish_reason or finishes.get(choice.index)
            if case["leave"]:
                break
    usage = usage and token_counts(usage.prompt_tokens, usage.completion_tokens)
    return {
        "choices": [held_choice(index, texts[index], finishes[index]) for index in sorted(texts)],
        "usage": usage,
    }


if __name__ == "__main__":
    torture(hold, "openai-chat", "sglang-chat", "vllm-chat", "openai-completions")
