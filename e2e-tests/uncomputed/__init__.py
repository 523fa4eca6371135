"""vLLM on a CUDA that computes nothing."""
