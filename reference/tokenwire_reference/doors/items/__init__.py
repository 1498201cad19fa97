"""The endpoints that answer with typed items: `/v1/responses` and `/v1/messages`.

Both read a conversation into chat messages, run it as chat does, and write each choice as items.
"""

from tokenwire_reference.doors.items import messages, responses

__all__ = ["messages", "responses"]
