"""What of KV Messenger runs on a GPU: one file with all it needs for a bare machine (docs/testing.md)."""
