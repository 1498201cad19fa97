"""litellm, as a client of an OpenAI-compatible server: its own chunk builder joins the stream."""

import litellm
from driver import URL, held_choice, token_counts, torture

litellm.suppress_debug_info = True


def hold(_, case):
    asked = {**case["request"], "model": f"openai/{case['request']['model']}"}
    stream = litellm.completion(api_base=f"{URL}/v1", api_key="none", timeout=60, max_retries=2, **asked)
    chunks = []
    for chunk in stream:
        chunks.append(chunk)
        if case["leave"] and chunk.choices and chunk.choices[0].delta.content:
            stream.completion_stream.close()
            return {"choices": []}
    done = litellm.stream_chunk_builder(chunks, messages=asked["messages"])
    usage = token_counts(done.usage.prompt_tokens, done.usage.completion_tokens)
    return {"choices": [held(choice, choice.message) for choice in done.choices], "usage": usage}


def held(choice, message):
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    reasoning = getattr(message, "reasoning_content", None)
    return held_choice(choice.index, message.content, choice.finish_reason, reasoning, calls)


if __name__ == "__main__":
    torture(hold, "openai-chat")
