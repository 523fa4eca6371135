"""SGLang without its compiled kernels, on the torch that a bare machine has: real servers on one GPU."""
