"""vLLM without its compiled extensions, on the torch that a bare machine has: a prefiller, a decoder and one alone."""
