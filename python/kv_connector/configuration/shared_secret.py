"""Reads the shared secret from an option, a file, or the environment. It is never printed or logged.

Engines log their configuration, and arguments of processes are visible, so a file (a mounted Kubernetes secret, for
example) or an environment variable is the better place; the option itself is for experiments.
"""

from __future__ import annotations

from collections.abc import Mapping

from kv_connector.configuration import small_files
from kv_connector.configuration.option_values import encodable, shown
from kv_connector.exceptions import OptionError

SECRET_VARIABLE = "KV_MESSENGER_SECRET"
SECRET_FILE_VARIABLE = "KV_MESSENGER_SECRET_FILE"
_REMEDIES = {"secret": "make a secret with 'openssl rand -hex 32'", "key": "take the engine's own --api-key"}
"""By what is read; each is kept from logs alike."""
_NAMES = (SECRET_VARIABLE, "KV_MESSENGER_SHARED_SECRET")
_FILE_NAMES = (SECRET_FILE_VARIABLE, "KV_MESSENGER_SHARED_SECRET_FILE")
VARIABLES = frozenset({*_NAMES, *_FILE_NAMES})
"""A secret under the option's own name counts too: one that changed nothing would leave peers without any."""
SECRET_BYTES_MAX = 4096
SECRET_BYTES_MIN = 16
"""The minimum beyond loopback: the handshake permits offline guessing, so a secret must be too long to guess."""


def secret_of(option: str, file_option: str, name: str = "shared_secret", what: str = "secret") -> str:
    """The secret that options set, or "" if they set none; ``name`` is that of the first. Raises OptionError.

    ``what`` is "secret", or "key" for one that a user does not make.
    """
    if option and file_option:
        raise OptionError(f"options '{name}' and '{name}_file' are both set, expected one of them")
    if option:
        return _whole(f"option '{name}'", option, what)
    return _read(f"option '{name}_file'", file_option, what) if file_option else ""


def find_secret(option: str, file_option: str, environment: Mapping[str, str]) -> str:
    """The secret, or "" if none is set; options take precedence over the environment. Raises OptionError."""
    if option or file_option:
        return secret_of(option, file_option)
    if variable := _set_one(_NAMES, environment):
        return _whole(f"environment variable {variable}", environment[variable])
    if variable := _set_one(_FILE_NAMES, environment):
        return _read(f"environment variable {variable}", environment[variable])
    return ""


def _set_one(names: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """The variable that is set; "" if none is."""
    set_ones = [name for name in names if environment.get(name)]
    if len({environment[name] for name in set_ones}) > 1:
        raise OptionError(f"environment variables {' and '.join(set_ones)} are both set and differ: unset one of them")
    return set_ones[0] if set_ones else ""


def _whole(source: str, secret: str, what: str = "secret") -> str:
    """Without the line end that a file has and a variable made of that file, so that both name one secret."""
    if not encodable(secret):
        raise OptionError(f"{source} is no UTF-8 text, expected some: {_REMEDIES[what]}")
    return secret.rstrip("\r\n")


def check_length(secret: str, listen_host: str, what: str = "the shared secret") -> None:
    """Raises OptionError if the secret is too short for use beyond loopback; ``what`` is its name in the sentence."""
    length_bytes = len(secret.encode())
    if length_bytes < SECRET_BYTES_MIN:
        raise OptionError(
            f"option 'listen_host' is {listen_host!r}, which is reachable from other machines, and {what}"
            f" has {length_bytes} bytes, expected {SECRET_BYTES_MIN} or more: make one with 'openssl rand -hex 32'"
        )


def _read(source: str, path: str, what: str = "secret") -> str:
    try:
        secret = small_files.read(path, SECRET_BYTES_MAX).decode().rstrip("\r\n")
    except (OSError, UnicodeError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else "not UTF-8 text"
        raise OptionError(
            f"{source} is {shown(path)}, which cannot be read ({reason}), expected a file with the {what} in it"
        ) from failure
    if not secret:
        raise OptionError(f"{source} is {shown(path)}, which is empty, expected a file with the {what} in it")
    return secret
