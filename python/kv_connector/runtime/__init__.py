"""The messenger in this process: its JVM, the table of its C functions, its commands and events, and what they need.

Needs no engine. Uses ``configuration`` and ``memory``.
"""
