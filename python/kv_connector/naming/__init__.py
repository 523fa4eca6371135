"""What two engines compare before they exchange KV: names of models, weights and prompts, and when KV counts as equal.

Both sides must compute the same names, so nothing here depends on the engine. Needs no JVM and no GPU.
"""
