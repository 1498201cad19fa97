"""The openai package at /v1/responses: by the deltas and by the last event, which have to say the same."""

from driver import counted, told, torture
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
        return {"choices": [told(0, text, None)]}
    if done.error:
        return {"error": done.error.message}
    calls = [(one.call_id, one.name, one.arguments) for one in done.output if one.type == "function_call"]
    thoughts = [part.text for one in done.output if one.type == "reasoning" for part in one.content or ()]
    if text != done.output_text:
        return {"error": f"the deltas say {text!r}, and the response {done.output_text!r}"}
    finish = "tool_calls" if calls else done.status
    usage = counted(done.usage.input_tokens, done.usage.output_tokens)
    return {"choices": [told(0, text, finish, "".join(thoughts), calls)], "usage": usage}


if __name__ == "__main__":
    torture(hold, "openai-responses")
