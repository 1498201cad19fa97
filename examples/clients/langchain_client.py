"""langchain-openai: ChatOpenAI, its chunks added up as its documentation says."""

from driver import URL, held_choice, token_counts, torture
from langchain_openai import ChatOpenAI


def hold(_, case):
    asked = case["request"]
    model = ChatOpenAI(
        base_url=f"{URL}/v1", api_key="none", model=asked["model"], stream_usage=True, timeout=60
    )
    whole, options = None, {key: asked[key] for key in ("tools", "stop") if key in asked}
    for chunk in model.stream(asked["messages"], **options):
        whole = chunk if whole is None else whole + chunk
        if case["leave"] and chunk.content:
            return {"choices": []}
    calls = [(piece["id"], piece["name"], piece["args"]) for piece in whole.tool_call_chunks]
    usage = whole.usage_metadata
    usage = usage and token_counts(usage["input_tokens"], usage["output_tokens"])
    finish = whole.response_metadata.get("finish_reason")
    choice = held_choice(0, whole.content, finish, calls=calls)
    return {"choices": [choice], "usage": usage}


if __name__ == "__main__":
    torture(hold, "openai-chat")
