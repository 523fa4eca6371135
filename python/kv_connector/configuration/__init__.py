"""What users set: the options, where they come from, what must hold between them, and the addresses they name.

Needs no engine, no JVM and no GPU.
"""
