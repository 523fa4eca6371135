"""A small inference engine in plain torch that calls the vLLM connector as vLLM does, on a CPU or a GPU.

It exists because vLLM is too large to carry to a bare machine with a GPU. docs/test-beds.md says which of vLLM's calls
it makes, and what it leaves out. Nothing here is fast.
"""
