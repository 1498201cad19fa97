"""The way out: from the engine's thread to what a consumer takes."""
