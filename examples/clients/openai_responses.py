"""The openai package at /v1/responses: the events of each part and the last event have to agree."""

from driver import held_choice, token_counts, torture
from openai import OpenAI

CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="none", timeout=60)
ENDS = {"response.completed", "response.incomplete", "response.failed"}


def hold(base, case):
    done, parts = None, {}
    with CLIENT.with_options(base_url=f"{base}/v1").responses.create(**case["request"]) as stream:
        for event in stream:
            join_text(parts, event)
            if event.type == "response.output_text.delta" and case["leave"]:
                return {"choices": []}
            done = event.response if event.type in ENDS else done
    text = "".join(parts.values())
    if done is None:
        return {"choices": [held_choice(0, text, None)]}
    if done.error:
        return {"error": done.error.message}
    asked = [item for item in done.output if item.type == "function_call"]
    calls = [(item.call_id, item.name, item.arguments) for item in asked]
    thoughts = [part.text for item in done.output if item.type == "reasoning" for part in item.content or ()]
    if text != done.output_text:
        return {"error": f"the events say {text!r}, and the response {done.output_text!r}"}
    finish = "tool_calls" if calls else done.status
    usage = token_counts(done.usage.input_tokens, done.usage.output_tokens)
    return {"choices": [held_choice(0, text, finish, "".join(thoughts), calls)], "usage": usage}


def join_text(parts, event):
    """Add the text of an event to its part; that of the closing event counts where none came."""
    if event.type not in {
        "response.content_part.added",
        "response.output_text.delta",
        "response.content_part.done",
    }:
        return
    place = event.output_index, event.content_index
    held = parts.setdefault(place, "")
    if event.type == "response.output_text.delta":
        parts[place] += event.delta
    elif event.part.type == "output_text" and (event.type.endswith("added") or not held):
        parts[place] += event.part.text


if __name__ == "__main__":
    torture(hold, "openai-responses")
