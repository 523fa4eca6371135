"""Memory that an engine shares with its messenger, its other ranks and GPUs: its KV cache, and the counter of layers.

Needs no engine and no JVM.
"""
