"""Does the target repeat itself? Without that, no two answers may be compared."""

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Conversation, Steps, scenario


@scenario()
def _probe(talk: Conversation) -> Steps:
    """The same greedy request three times at once: equal ids show that the target repeats itself."""
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=32, ignore_eos=True, return_token_ids=talk.chat)
    yield {"first": ask, "second": ask, "third": ask}
