"""Creates the Python environments of demos and tests, each once, and runs commands in them.

An environment is a venv outside the tree, in ``$KV_MESSENGER_CACHE`` (default ``~/.cache/kv-messenger``), named by a
hash of its pins: a changed pin creates a new one, otherwise it is reused. KV Messenger itself is never installed into
it: each wheel gets a small venv on top, so that two checkouts do not affect each other. Uses the standard library only.

    environment make NAME                     prints the interpreter's path
    environment run  NAME [--release R] [--wheel W] -- ARGS…   runs the interpreter with ARGS

NAME is tools, engine, sglang, simulation, stores, trl or race. R is another release of SGLang than the pinned one, or
"newest": it is installed above the same pinned packages.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes.util
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Engine:
    """The requirements of an environment with an inference engine."""

    name: str
    stays_gib: int
    disk_gib: int  # including pip's downloads
    needs_libnuma: bool = False


ENVIRONMENTS = {
    "tools": None,
    "engine": Engine("vLLM", stays_gib=7, disk_gib=14, needs_libnuma=True),
    "sglang": Engine("SGLang", stays_gib=7, disk_gib=14),
    "simulation": None,
    "race": None,
    "stores": None,
    "trl": None,
}
OF_OTHER_RELEASES = {"sglang": "sglang"}
"""Environment → the distribution of which another release may be installed above it."""
NEWEST = "newest"
BUILT_FROM_SOURCE = "# built from source"
VENVS_KEPT = 8
TICK_SECONDS = 10.0
STARTED = time.monotonic()


def say(message: str) -> None:
    print(f"[{time.monotonic() - STARTED:5.0f} s] {message}", file=sys.stderr, flush=True)


def cache_home() -> Path:
    return Path(os.environ.get("KV_MESSENGER_CACHE") or Path.home() / ".cache" / "kv-messenger")


def pins(name: str) -> Path:
    return HERE / f"{name}.lock"


def key_of(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:12]


def interpreter_tag() -> bytes:
    return f"{sys.version_info[0]}.{sys.version_info[1]} {sysconfig.get_platform()}".encode()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """A lock held while a venv is created, so that concurrent make runs share the work."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def ticking(what: str, log: Path) -> Iterator[None]:
    """A context that regularly prints that ``what`` is in progress, with the last line of its log."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(TICK_SECONDS):
            last = log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2].strip()
            say(f"  … {what}: {last[:80]}")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def run_step(what: str, command: list[str], log: Path) -> None:
    with open(log, "a", encoding="utf-8") as out, ticking(what, log):
        out.write(f"\n$ {' '.join(command)}\n")
        out.flush()
        status = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    if status != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:])
        raise SystemExit(f"{tail}\n\n{what} failed with status {status}; the whole log is {log}")


def new_venv(home: Path, log: Path, *options: str) -> None:
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    run_step("making a venv", [sys.executable, "-m", "venv", *options, str(home)], log)


def python_of(home: Path) -> Path:
    return home / "bin" / "python"


def site_packages_of(home: Path) -> Path:
    return home / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def all_pins(name: str) -> list[str]:
    lines = pins(name).read_text(encoding="utf-8").splitlines()
    return [line.partition("#")[0].strip() for line in lines if "==" in line]


def pins_built_from_source(name: str) -> list[str]:
    lines = pins(name).read_text(encoding="utf-8").splitlines()
    return [line.partition("#")[0].strip() for line in lines if BUILT_FROM_SOURCE in line]


def check_source_builds(sources: list[str]) -> None:
    """Reports what a build from source would lack, and lets it find the JDK."""
    needs = f"{' and '.join(sources)} is built from source and needs"
    if not any(shutil.which(compiler) for compiler in ("cc", "gcc", "clang")):
        raise SystemExit(f"{needs} a C compiler: install one (Debian: apt install gcc).")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise SystemExit(f"{needs} Python.h: install Python's headers (Debian: apt install python3-dev).")
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        raise SystemExit(f"{needs} a Python with a shared library, {sys.executable} has none: set PYTHON to another.")
    found = subprocess.run([str(HERE / "find-jdk")], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise SystemExit(f"{needs} a JDK: {found.stderr.strip()}")
    os.environ["JAVA_HOME"] = found.stdout.strip()


def check_fits(engine: Engine) -> None:
    free_gib = shutil.disk_usage(existing_parent(cache_home())).free / 2**30
    if free_gib < engine.disk_gib:
        raise SystemExit(
            f"{engine.name} needs {engine.disk_gib} GiB of disk while it is installed, {cache_home()} has "
            f"{free_gib:.1f} GiB: free some, or set KV_MESSENGER_CACHE to a folder on another disk."
        )
    if engine.needs_libnuma and ctypes.util.find_library("numa") is None:
        install_libnuma()


def existing_parent(path: Path) -> Path:
    return path if path.exists() else existing_parent(path.parent)


def install_libnuma() -> None:
    remedy = "vLLM on CPU needs libnuma.so.1: install it (Debian: apt install libnuma1)."
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SystemExit(remedy)
    say("installing libnuma1 (vLLM's CPU kernels need it)")
    log = cache_home() / "apt.log"
    run_step("apt-get update", ["apt-get", "update"], log)
    run_step("apt-get install", ["apt-get", "install", "-y", "--no-install-recommends", "libnuma1"], log)


def make(name: str) -> Path:
    """The interpreter of the pinned environment, which is created if it does not exist."""
    home = cache_home() / f"{name}-{key_of(pins(name).read_bytes(), interpreter_tag())}"
    done = home / ".complete"
    if done.exists():
        return python_of(home)
    with locked(home.with_suffix(".lock")):
        if done.exists():
            return python_of(home)
        engine = ENVIRONMENTS[name]
        if engine:
            check_fits(engine)
        sources = pins_built_from_source(name)
        if sources:
            check_source_builds(sources)
        size = f", {engine.stays_gib} GiB, some minutes" if engine else ""
        say(f"installing {len(all_pins(name))} pinned packages for '{name}' into {home}{size}")
        log = home.with_suffix(".log")
        log.unlink(missing_ok=True)
        new_venv(home, log)
        install(name, sources, python_of(home), log)
        done.touch()
        say(f"'{name}' is ready")
    return python_of(home)


def install(name: str, sources: list[str], python: Path, log: Path) -> None:
    """Installs all pins, first those with wheels, then those without, whose builds need the others."""
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--progress-bar=off"]
    if not sources:
        what = f"pip installs {len(all_pins(name))} packages"
        run_step(what, [*pip, "--only-binary=:all:", "-r", str(pins(name))], log)
        return
    wheels = [pin for pin in all_pins(name) if pin not in sources]
    run_step(f"pip installs {len(wheels)} packages", [*pip, "--only-binary=:all:", *wheels], log)
    run_step(f"pip builds {' and '.join(sources)}", [*pip, "--no-build-isolation", *sources], log)


def with_wheel(base: Path, wheel: Path) -> Path:
    """A venv in which pip has installed ``wheel`` above the packages of the base environment."""
    return above(base, cache_home() / "wheels", key_of(wheel.read_bytes()), str(wheel))


def with_release(name: str, base: Path, release: str) -> Path:
    """A venv with another release of the environment's engine above its packages, whose pins stay those of its own."""
    if name not in OF_OTHER_RELEASES:
        raise SystemExit(
            f"--release is {release}, and '{name}' has one release only: run one of {', '.join(OF_OTHER_RELEASES)}"
        )
    distribution = OF_OTHER_RELEASES[name]
    version = newest(base, distribution) if release == NEWEST else release
    say(f"{distribution} {version} is used, above the packages of '{name}'")
    pin = f"{distribution}=={version}"
    return above(base, cache_home() / "releases", key_of(pin.encode()), pin)


def newest(base: Path, distribution: str) -> str:
    """The release that pip would install now."""
    pip = [str(base), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--dry-run"]
    asked = [*pip, "--ignore-installed", "--only-binary=:all:", "--report", "-", distribution]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise SystemExit(f"the newest release of {distribution} cannot be asked for: {found.stderr.strip()[-300:]}")
    return str(json.loads(found.stdout)["install"][0]["metadata"]["version"])


def above(base: Path, folder: Path, key: str, package: str) -> Path:
    """A venv in which pip has installed one package, and in which the packages of the base environment are visible.

    One lock for all of them: a process that removes old venvs runs beside others that create, list and remove them.
    """
    base_home = base.parent.parent
    home = folder / f"{base_home.name}-{key}"
    done = home / ".complete"
    with locked(folder / "venvs.lock"):
        if not done.exists():
            log = home.with_suffix(".log")
            new_venv(home, log, "--without-pip")
            pip = [str(base), "-m", "pip", "--disable-pip-version-check", "--python", str(python_of(home))]
            run_step(f"pip installs {Path(package).name}", [*pip, "install", "--no-deps", package], log)
            beneath = f"import site; site.addsitedir({str(site_packages_of(base_home))!r})\n"
            (site_packages_of(home) / "beneath.pth").write_text(beneath, encoding="utf-8")
            done.touch()
        os.utime(done)
        forget_unused(folder)
    return python_of(home)


def forget_unused(folder: Path) -> None:
    """Removes all but the venvs used last; the caller holds the folder's lock."""
    marks = sorted(folder.glob("*/.complete"), key=lambda mark: mark.stat().st_mtime, reverse=True)
    for mark in marks[VENVS_KEPT:]:
        shutil.rmtree(mark.parent, ignore_errors=True)
        mark.parent.with_suffix(".log").unlink(missing_ok=True)


def run(name: str, release: str, wheel: Path | None, arguments: list[str]) -> None:
    base = with_release(name, make(name), release) if release else make(name)
    python = with_wheel(base, wheel) if wheel else base
    environment = dict(os.environ, KV_MESSENGER_BASE_PYTHON=str(base))
    environment["PATH"] = f"{python.parent}{os.pathsep}{base.parent}{os.pathsep}{environment.get('PATH', '')}"
    environment.pop("PYTHONPATH", None)  # only installed packages are imported
    os.execve(python, [str(python), *arguments], environment)


def main() -> None:
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="environment", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("make", "run"))
    parser.add_argument("name", choices=ENVIRONMENTS)
    parser.add_argument("--release", default="")
    parser.add_argument("--wheel", type=Path)
    given = parser.parse_args(arguments[:split])
    if given.what == "make":
        print(make(given.name))
    else:
        run(given.name, given.release, given.wheel, arguments[split + 1 :])


if __name__ == "__main__":
    main()
