"""The openai package at /v1/responses: by the deltas and by the last event, which have to say the same."""

from driver import held_choice, token_counts, torture
from openai import OpenAI

CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="none", timeout=60)
ENDS = {"response.completed", "response.incomplete", "response.failed"}


def hold(base, case):
    done, text = None, ""
    with CLIENT.with_options(base_url=f"{base}/v1").responses.create(**case["request"]) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
                if case["leave"]:
                    return {"choices": []}
            done = event.response if event.type in ENDS else done
    if done is None:
        return {"choices": [held_choice(0, text, None)]}
    if done.error:
        return {"error": done.error.message}
    asked = [item for item in done.output if item.type == "function_call"]
    calls = [(item.call_id, item.name, item.arguments) for item in asked]
    thoughts = [part.text for item in done.output if item.type == "reasoning" for part in item.content or ()]
    if text != done.output_text:
        return {"error": f"the deltas say {text!r}, and the response {done.output_text!r}"}
    finish = "tool_calls" if calls else done.status
    usage = token_counts(done.usage.input_tokens, done.usage.output_tokens)
    return {"choices": [held_choice(0, text, finish, "".join(thoughts), calls)], "usage": usage}


if __name__ == "__main__":
    torture(hold, "openai-responses")
