"""The progress of a run's requests, on a terminal."""

from __future__ import annotations

from rich.console import Console

from tokenwire.asking.run import Progress
from tokenwire.asking.scenario import Conversation
from tokenwire.record import Stream
from tokenwire.report.meter import Meter


class TerminalProgress(Meter, Progress):
    """A context manager that shows the number of finished scenarios and the last exchange."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "asking")
        self._exchanges = 0
        self._confirming = ""

    def planned(self, conversations: int) -> None:
        self.show(total=conversations)

    def answered(self, stream: Stream) -> None:
        self._exchanges += 1
        self.show(words=f"{self._confirming}{self._exchanges} exchanges, last {stream.exchange.name}")

    def confirming(self, done: int, total: int) -> None:
        self._confirming = f"confirming {done + 1} of {total}; "

    def waiting(self, words: str) -> None:
        self.show(words=words)
        self.say(words)

    def finished(self, conversation: Conversation) -> None:  # noqa: ARG002  # only that it is over
        self.show(done=1)
