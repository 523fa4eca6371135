"""``python -m kv_connector`` is the command ``kv-messenger``."""

from __future__ import annotations

import sys

from kv_connector.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
