"""The command ``kv-messenger``. Nothing here is needed by an engine."""
