"""A queue that takes no more."""


class QueueFullError(ValueError):
    """As many requests wait as may; the client is answered with 503 and can try again."""

    def __init__(self) -> None:
        super().__init__("The request queue is full.")
