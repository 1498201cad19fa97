"""The anthropic package: messages by its own accumulator."""

import json

from anthropic import Anthropic
from driver import held_choice, token_counts, torture

CLIENT = Anthropic(base_url="http://127.0.0.1", api_key="none", timeout=60)


def hold(base, case):
    asked = {key: value for key, value in case["request"].items() if key not in {"stream", "temperature"}}
    with CLIENT.with_options(base_url=base).messages.stream(**asked) as stream:
        for event in stream:
            if case["leave"] and event.type == "text":
                return {"choices": []}
        done = stream.get_final_message()
    text = "".join(block.text for block in done.content if block.type == "text")
    thinking = [block for block in done.content if block.type == "thinking"]
    thoughts = "".join(block.thinking for block in thinking)
    signatures = [block.signature for block in thinking]
    uses = [block for block in done.content if block.type == "tool_use"]
    calls = [(use.id, use.name, json.dumps(use.input)) for use in uses]
    usage = token_counts(done.usage.input_tokens, done.usage.output_tokens)
    held = held_choice(0, text, done.stop_reason, thoughts, calls)
    return {"choices": [{**held, "signatures": signatures}], "usage": usage}


if __name__ == "__main__":
    torture(hold, "anthropic-messages")
