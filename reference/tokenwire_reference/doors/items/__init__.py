"""The endpoints with typed items: `/v1/responses` and `/v1/messages`.

Both convert a conversation into chat messages, run it as a chat, and write each choice as items.
"""

from tokenwire_reference.doors.items import messages, responses

__all__ = ["messages", "responses"]
