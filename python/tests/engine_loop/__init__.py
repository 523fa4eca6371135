"""The engine in the loop: vLLM's own engine core on both sides, a model that computes digests, and the real messengers.

``python python/tests/engine_loop --help`` runs it by hand; docs/testing.md says what it checks.
"""
