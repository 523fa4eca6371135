"""What pulls have in common under both engines: how a request names the engine to pull from, and what it is worth.

Needs no engine. Uses ``configuration`` and the commands of ``runtime``.
"""
