"""An engine for the real front ends of vLLM and SGLang.

It answers like a parrot, and each request can determine the steps of its answer.
"""
