"""Does the target repeat itself? Without that, no two answers may be compared."""

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Conversation, scenario


@scenario()
async def probe(talk: Conversation) -> None:
    """The same greedy request three times at once: equal ids show that the target repeats itself."""
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=32, ignore_eos=True, return_token_ids=talk.chat)
    await talk.ask_all({"first": ask, "second": ask, "third": ask})
