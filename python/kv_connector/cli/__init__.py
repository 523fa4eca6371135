"""The command ``kv-messenger``. Engines use nothing of this package."""
