"""The models, their attention over paged keys and values, and decode as CUDA graphs."""
