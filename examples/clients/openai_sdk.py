"""The openai package: chat by its own accumulator, completions by hand."""

from driver import counted, told, torture
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
    usage = done.usage and counted(done.usage.prompt_tokens, done.usage.completion_tokens)
    return {
        "choices": [chat(choice.index, choice.message, choice.finish_reason) for choice in done.choices],
        "usage": usage,
    }


def chat(index, message, finish):
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    extra = message.model_extra or {}
    return told(
        index, message.content, finish, extra.get("reasoning_content") or extra.get("reasoning"), calls
    )


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
    usage = usage and counted(usage.prompt_tokens, usage.completion_tokens)
    return {
        "choices": [told(index, texts[index], finishes[index]) for index in sorted(texts)],
        "usage": usage,
    }


if __name__ == "__main__":
    torture(hold, "openai-chat", "sglang-chat", "vllm-chat", "openai-completions")
