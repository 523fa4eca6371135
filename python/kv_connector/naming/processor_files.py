"""How images, videos and sounds become a model's input, as settings that two sides compare; read from its files.

Engines name an image by its own bytes, so two sides that scale or normalise it otherwise have one name for two KVs.
Used once, while an engine starts. A file that is missing, or that is no JSON object, gives no setting.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from kv_connector.naming.model_settings import Settings, of_configuration

FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
_OF_CLASSES = ("processor_class",)
"""The class that an engine takes follows from the model's, which is compared."""


def of_folder(folder: Path) -> Settings:
    """Each value of the files, by the file's name and its own."""
    settings: Settings = {}
    for file in FILES:
        with contextlib.suppress(OSError, ValueError):
            values = json.loads((folder / file).read_text(encoding="utf-8"))
            if isinstance(values, dict):
                settings.update(of_configuration(values, without=_OF_CLASSES, prefix=f"{file}: "))
    return settings
