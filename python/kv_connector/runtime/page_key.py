"""The key of a messenger's pages that name requests (/, /state) or change something (/drain, /undrain).

Where a connection comes from proves nothing: behind a pod's sidecar all come from loopback. The key is derived from the
shared secret, so whatever has the secret can compute it, on any host; without a secret it is random. Either way it is
also in a file that only the engine's user (and root) can read, for commands on the engine's own host.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger("kv_connector")

PURPOSE = b"kv-messenger: key of the pages, 1"
RANDOM_BYTES = 32
FOLDERS = (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp"))
"""Where the file's folder is made, in this order; not $TMPDIR, which the engine and a shell beside it may not share."""
FOLDER_PREFIX = "kv-messenger-keys-"
ROOT = 0


def derived(secret: str) -> str:
    """The key of all messengers that have the secret; it does not reveal the secret."""
    return hmac.new(secret.encode(), PURPOSE, hashlib.sha256).hexdigest()


def made(secret: str) -> str:
    """A messenger's key: derived from its secret, or random if it has none."""
    return derived(secret) if secret else secrets.token_hex(RANDOM_BYTES)


def keep(key: str, port: int) -> Path | None:
    """Leaves the key for commands on this host; None, with a line in the log, if no folder takes it."""
    reasons = []
    for parent in FOLDERS:
        folder = parent / f"{FOLDER_PREFIX}{os.geteuid()}"
        try:
            return _write(folder, key, port)
        except OSError as failure:
            reasons.append(f"{folder}: {failure.strerror or failure}")
    logger.info(
        "no file holds the key of the pages (%s): kv-messenger drain and state need the secret", "; ".join(reasons)
    )
    return None


def forget(file: Path | None, key: str) -> None:
    """Removes the file, unless a later messenger has written it anew."""
    if file is not None:
        with contextlib.suppress(OSError):
            if file.read_text(encoding="ascii") == key:
                file.unlink()


def kept(port: int) -> Iterator[str]:
    """The keys that were left for a port by this user's messengers; for root, by any user's."""
    user = os.geteuid()
    name = "*" if user == ROOT else str(user)
    for parent in FOLDERS:
        for folder in sorted(parent.glob(f"{FOLDER_PREFIX}{name}")):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                if user == ROOT or _is_private(folder):
                    yield (folder / str(port)).read_text(encoding="ascii")


def _write(folder: Path, key: str, port: int) -> Path:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _is_private(folder):
        raise OSError("it belongs to another user, or others can enter it")
    made_file = folder / f"{port}.{os.getpid()}"
    descriptor = os.open(made_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(key)
        return made_file.rename(folder / str(port))
    except OSError:
        made_file.unlink()  # each start on a full disk would leave one more
        raise


def _is_private(folder: Path) -> bool:
    facts = folder.lstat()
    return (
        stat.S_ISDIR(facts.st_mode)
        and facts.st_uid == os.geteuid()
        and not facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    )
