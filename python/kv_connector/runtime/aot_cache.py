"""The JVM's AOT cache of classes (JEP 514), which shortens its start; created on the user's machine, in the background.

The JVM does not notice that a cache was created from another jar, and would run the old code. So a file's name is a
digest of the jars, the Java build and the options, and a file with another name is never used.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from kv_connector.runtime.java_variables import environment_of_java
from kv_connector.runtime.preflight import JavaRuntime

logger = logging.getLogger("kv_connector")

CACHES_KEPT_MAX = 4
TRAINING_LIMIT_SECONDS = 600.0

# $1 lock, $2 temporary file, $3 final file, then the command. The rename comes last: the final file is always complete.
_TRAIN = """
lock=$1; made=$2; final=$3; shift 3
(
  trap '' HUP
  if "$@" && test -s "$made"; then mv -f "$made" "$final"; fi
  rm -f "$made" "$made.config" "$lock"
) &
"""


class AotCache:
    """One cache file, for certain jars, a Java build and options."""

    def __init__(self, java: JavaRuntime, jar_hashes: Sequence[str], options: Sequence[str], folder: Path) -> None:
        inputs = "\0".join([*jar_hashes, java.identity, *options])
        key = hashlib.sha256(inputs.encode()).hexdigest()[:32]
        self._folder = folder
        self._lock = folder / f"{key}.lock"
        self.path = folder / f"{key}.aot"

    def usable(self) -> bool:
        """Whether the file exists and only this user or root can have written it."""
        return not self.why_unusable()

    def why_unusable(self) -> str:
        """Why the file cannot be used, in a few words; "" if it can."""
        for path in (self._folder, self.path):
            reason = _why_untrusted(path)
            if reason:
                return reason
        return ""

    def why_unmakeable(self) -> str:
        """Why the first start could not make the file, in a few words; "" if it could. Makes nothing."""
        for parent in (self._folder, *self._folder.parents):
            with contextlib.suppress(OSError):
                parent.stat()
                writable = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
                return "" if writable else f"{self._folder} cannot be made: {parent} is not this user's to write"
        return f"{self._folder} cannot be made"

    def share(self) -> None:
        """Makes the file readable for other users, who trust it if root has created it: for the build of an image."""
        self._folder.chmod(0o755)
        self.path.chmod(0o644)

    def training(self) -> bool:
        """Whether the file exists or a process is creating it."""
        return self._lock.exists() or self.path.exists()

    def train(self, java: JavaRuntime, options: Sequence[str], main_class: str) -> bool:
        """Starts a process that runs ``main_class`` to create the file; False if it cannot, or another one runs."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            untrusted = _why_untrusted(self._folder)
            if untrusted:
                logger.info("no class cache is made (%s): the next start is as slow as this one", untrusted)
                return False
            if not self._take_lock():
                return False
            self._forget_old()
            made = self.path.with_suffix(f".{os.getpid()}.tmp")
            command = [str(java.launcher), *options, f"-XX:AOTCacheOutput={made}", main_class]
            idle = [nice, "-n", "19"] if (nice := shutil.which("nice")) else []
            subprocess.run(
                ["/bin/sh", "-c", _TRAIN, "sh", str(self._lock), str(made), str(self.path), *idle, *command],
                check=True,
                env=environment_of_java(),
                start_new_session=True,
                stdin=subprocess.DEVNULL,  # a reader of this process's output must not wait for the training
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except (OSError, subprocess.CalledProcessError) as failure:
            logger.info("no class cache in %s (%s): the next start is as slow as this one", self._folder, failure)
            return False
        return True

    def _take_lock(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            if time.time() - self._lock.stat().st_mtime > TRAINING_LIMIT_SECONDS:
                self._lock.unlink()
        try:
            os.close(os.open(self._lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        return True

    def _forget_old(self) -> None:
        """Unlinks old caches; a JVM that has one mapped can still use it."""
        with contextlib.suppress(OSError):
            now = time.time()
            files = sorted(self._folder.glob("*.aot"), key=lambda file: file.stat().st_mtime, reverse=True)
            orphans = [f for f in self._folder.glob("*.tmp*") if now - f.stat().st_mtime > TRAINING_LIMIT_SECONDS]
            for file in [*files[CACHES_KEPT_MAX - 1 :], *orphans]:
                file.unlink()


NO_HOME = "this user has neither HOME nor a passwd entry, and KV_MESSENGER_CACHE is not set"


def cache_folder() -> Path | None:
    """The user's folder for AOT caches; None if the user has no home."""
    if own := os.environ.get("KV_MESSENGER_CACHE"):
        return Path(own) / "aot"
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        try:
            base = str(Path.home() / ".cache")
        except RuntimeError:  # a container's user id often has no passwd entry
            return None
    return Path(base) / "kv-messenger" / "aot"


def _why_untrusted(path: Path) -> str:
    try:
        facts = path.stat()
    except OSError as failure:
        return f"{path}: {failure.strerror}"
    if facts.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to user {facts.st_uid}, expected this process's user {os.geteuid()} or root"
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be written by other users"
    return ""
