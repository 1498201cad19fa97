"""The engine: generates tokens for requests, and decides which tokens may be sent to the client."""
