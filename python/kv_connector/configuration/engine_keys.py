"""The API keys of engines' HTTP servers, which are sent with what this package asks them. They are never logged.

An engine's own configuration names its key (``--api-key``), but not to each part of it, and a command or a trainer has
none. So there are options, each with a file in its place, as for the shared secret. Pure but for the files.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from kv_connector.configuration import option_variables
from kv_connector.configuration import shared_secret as secrets
from kv_connector.configuration.option_values import shown
from kv_connector.exceptions import OptionError

API_KEY = "engine_api_key"
ADMIN_API_KEY = "engine_admin_api_key"
NAMES = (API_KEY, ADMIN_API_KEY)
REFUSED = (401, 403)
"""What an engine answers to a request without the right key."""
KEY_LENGTH_MAX = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class EngineKeys:
    """The keys of one or more servers; "" = none."""

    api_key: str = dataclasses.field(default="", repr=False)
    admin_api_key: str = dataclasses.field(default="", repr=False)

    def in_turn(self) -> list[str]:
        """What is shown to a server, one after the other until it takes one; [""] without any key."""
        return list(dict.fromkeys(key for key in (self.api_key, self.admin_api_key) if key)) or [""]


NO_KEYS = EngineKeys()


def bearer(key: str) -> dict[str, str]:
    """The header that shows a key; none without one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def key_of(name: str, values: Mapping[str, object]) -> str:
    """The key of the option ``name`` or of its file, "" if neither is set; raises OptionError, without a key in it."""
    path = str(values.get(f"{name}_file", ""))
    key = secrets.secret_of(str(values.get(name, "")), path, name, "key")
    if not is_key(key):
        given = f"option '{name}_file' is {shown(path)}, which has" if path else f"option '{name}' has"
        raise OptionError(
            f"{given} {len(key)} characters that an HTTP header cannot carry, expected at most"
            f" {KEY_LENGTH_MAX} visible ones of ASCII: take the engine's own --api-key"
        )
    return key


def is_key(text: str) -> bool:
    """Whether an HTTP header can carry this key."""
    return len(text) <= KEY_LENGTH_MAX and text.isascii() and (not text or text.isprintable()) and text == text.strip()


def keys_in(environment: Mapping[str, str] = os.environ) -> EngineKeys:
    """The keys of a command, which has no options but the environment's; raises OptionError."""
    names = [*NAMES, *(f"{name}_file" for name in NAMES)]
    values = {name: environment.get(option_variables.variable_of(name), "") for name in names}
    try:
        return EngineKeys(*(key_of(name, values) for name in NAMES))
    except OptionError as wrong:
        given = [name for name in names if values[name]]
        raise OptionError(f"{wrong}{option_variables.places(str(wrong), given)}") from None


def wants_key(asked: str, status: int) -> str:
    """What to do about an answer of 401 or 403, in one sentence."""
    return (
        f"{asked} answered {status}, expected 200: the server wants an API key, set"
        f" {option_variables.variable_of(API_KEY)}_FILE to a file with its --api-key, and"
        f" {option_variables.variable_of(ADMIN_API_KEY)}_FILE to one with an SGLang server's --admin-api-key"
    )
