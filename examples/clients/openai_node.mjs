// The npm package openai: chat by its own accumulator, responses by its last event.
import OpenAI from "openai";

const URL_ = process.env.TOKENWIRE_URL ?? "http://127.0.0.1:8000";
const fetched = async (path, body) =>
  (await fetch(URL_ + path, body && { method: "POST", body: JSON.stringify(body) })).json();

async function chat(client, asked, leave) {
  const runner = client.chat.completions.stream(asked);
  for await (const chunk of runner) if (leave && chunk.choices[0]?.delta.content) return runner.abort(), { choices: [] };
  const done = await runner.finalChatCompletion();
  const choices = done.choices.map(({ index, message, finish_reason, logprobs }) => ({
    index, text: message.content, reasoning: message.reasoning_content ?? message.reasoning, finish: finish_reason,
    logprobs: (logprobs?.content ?? []).map(({ logprob }) => logprob),
    calls: (message.tool_calls ?? []).map(({ id, function: { name, arguments: text } }) => ({ id, name, arguments: text })),
  }));
  return { choices, usage: done.usage };
}

async function responses(client, asked, leave) {
  let done;
  for await (const event of await client.responses.create({ ...asked, stream: true })) {
    if (leave && event.type === "response.output_text.delta") return { choices: [] };
    if (["response.completed", "response.incomplete", "response.failed"].includes(event.type)) done = event.response;
  }
  if (done.error) return { choices: [], error: done.error.message };
  const of = (type) => done.output.filter((item) => item.type === type);
  const joined = (type) => of(type).flatMap((item) => item.content).map((part) => part.text).join("");
  const calls = of("function_call").map(({ call_id, name, arguments: text }) => ({ id: call_id, name, arguments: text }));
  const choice = { index: 0, text: joined("message"), reasoning: joined("reasoning"), calls, finish: calls.length ? "tool_calls" : done.status };
  const usage = { prompt_tokens: done.usage.input_tokens, completion_tokens: done.usage.output_tokens };
  return { choices: [choice], usage };
}

const client = new OpenAI({ baseURL: `${URL_}/v1`, apiKey: "none", timeout: 60_000 });
for (const [door, hold] of [["openai-chat", chat], ["openai-responses", responses]])
  for (const { case: name, request, leave } of await fetched(`/tokenwire/cases?door=${door}`)) {
    const { stream, ...asked } = request;
    let held;
    try {
      held = await hold(client, asked, leave);
    } catch (error) {
      held = { error: `${error.name}: ${error.message}`.slice(0, 500) };
    }
    await fetched(`/tokenwire/report/${door}/${name}`, held);
  }
