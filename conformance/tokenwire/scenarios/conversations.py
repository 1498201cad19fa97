"""Scenarios for conversations of agents: tool calls, their results, and the answers to these, over several
turns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenwire.ask import Ask
from tokenwire.asking.scenario import Conversation, only_choice, scenario
from tokenwire.dialects.history import HistoryBinding, SentCall
from tokenwire.dialects.markup import Form, load_markup
from tokenwire.parrot.speaker import Speaker
from tokenwire.scenarios.channels import TOOLS
from tokenwire.scenarios.forms import forms

_QUESTION = "What is the weather in Paris, and in Rome?"
_PARIS = SentCall("callParis", "get_weather", {"city": "Paris"}, "")
_ROME = (
    SentCall("callRome1", "get_weather", {"city": "Rome"}, "It is 30 degrees."),
    SentCall("callRome2", "get_weather", {"city": "Rome", "days": 2}, ""),
)
_THOUGHTS = ("I need the weather.", "Now the other city.", "Both are known.")
_ANSWER = "It is warm in both."
_SHORT = "none"
_ROOM = 112
"""Token limit for models that are not parrots: the longest answer of a parrot, and a margin."""
_PROMPT = 1400

Messages = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class _Agent:
    """An agent's conversation at one endpoint."""

    talk: Conversation
    turns: HistoryBinding
    form: Form
    speaker: Speaker | None

    def ask(self, messages: Messages, **more: Any) -> Ask:
        budget = self.talk.fitting(_ROOM, _PROMPT)
        return replace(Ask(messages=messages, max_new_tokens=budget, tools=TOOLS), **more)

    def said(self, thought: str, text: str, calls: Sequence[SentCall] = ()) -> str:
        """Return the text that the model must output: reasoning, and then text or calls."""
        think = load_markup()[0]["think"]
        made = self.form.spelled(*((call.name, call.arguments) for call in calls))
        return f"{think.opens}\n{thought}\n{think.closes}\n\n{text}{made}"

    def words(self, otherwise: str, says: str, role: str, behind: Messages) -> str:
        """Return a message that makes a parrot output the text; for other models, plain words."""
        if self.speaker is None:
            return otherwise
        script = (*self.speaker.encode(says), self.speaker.end)
        return self.speaker.reply(script, role, behind) or otherwise

    def first(self) -> Messages:
        says = self.said(_THOUGHTS[0], "", (_PARIS,))
        return ({"role": "user", "content": self.words(_QUESTION, says, "user", ())},)

    def second(self, first: Messages, thought: str = "") -> tuple[SentCall, ...]:
        """Return the calls of the first answer, with the result that the second request contains."""
        says = self.said(_THOUGHTS[1], "", _ROME)
        before = (*first, *self.turns.turn((_PARIS,), reasoning=thought))
        return (replace(_PARIS, result=self.words("It is 21 degrees.", says, "tool", before)),)

    def third(self, second: Messages) -> tuple[SentCall, ...]:
        """Return the calls of the second answer, with the results that the third request contains."""
        before = (*second, *self.turns.turn(_ROME))
        result = self.words("It will be 31 degrees. " * 8, self.said(_THOUGHTS[2], _ANSWER), "tool", before)
        return (_ROME[0], replace(_ROME[1], result=result))


@scenario(chat=True)
async def _conversations(talk: Conversation) -> None:
    """An agent's conversation of three turns, without and with streaming, without logprobs or ids.

    The turns are a question, a call and its result, two calls and their results, and the answer. The last
    turn is also sent with a short result, and the second turn with the reasoning of the first answer. If the
    server stores responses, turns also refer to the previous response by its id.
    """
    turns = talk.dialect.request.turns
    if turns is None:
        return
    agent = _Agent(talk, turns, load_markup()[1][talk.tool_calls or "hermes"], talk.parrot)
    first = agent.first()
    made = [agent.second(first)]
    second = (*first, *turns.turn(made[0]))
    made.append(agent.third(second))
    for label, messages in (("first", first), ("second", second), ("third", (*second, *turns.turn(made[1])))):
        answers = await talk.ask_all(forms(agent.ask(messages), label, usage=True))
        if not any(answer.answered for answer in answers.values()):
            return
    short = (*made[1][:-1], replace(made[1][-1], result=_SHORT))
    await talk.ask("short", agent.ask((*second, *turns.turn(short))))
    thought = _THOUGHTS[0]
    reasoned = (*first, *turns.turn(agent.second(first, thought), reasoning=thought))
    await talk.ask_all(forms(agent.ask(reasoned), "reasoned", usage=True))
    if talk.dialect.request.goes_on:
        await _named(talk, agent, first, made)


async def _named(
    talk: Conversation, agent: _Agent, first: Messages, made: Sequence[tuple[SentCall, ...]]
) -> None:
    """Continue stored responses by id. Each request contains only the results of the calls."""
    answer = kept = await talk.ask("kept", agent.ask(first, raw={"store": True}))
    for label, calls in zip(("second-named", "third-named"), made, strict=True):
        choice = only_choice(answer)
        if answer is None or choice is None or len(choice.calls) != len(calls):
            return
        given = [replace(call, id=str(own.id)) for call, own in zip(calls, choice.calls, strict=True)]
        results = tuple(agent.turns.turn(given)[-len(given) :])
        named = {talk.dialect.request.goes_on: answer.document.get("id"), "store": True}
        answer = await talk.ask(label, agent.ask(results, raw=named))
        if label == "second-named" and answer is not None and answer.answered and kept is not None:
            output = kept.document.get("output")
            items = (
                output if isinstance(output, list) else ()
            )  # these include the call as the server wrote it
            await talk.ask("second-repeated", agent.ask((*first, *items, *results)))
