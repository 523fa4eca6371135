"""The class cache makes boot faster, and never runs code that the jar does not hold."""

from __future__ import annotations

import os
import subprocess
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import PROCESS_LIMIT_SECONDS, RunPython

from kv_connector import prepare
from kv_connector.runtime import jvm, preflight
from kv_connector.runtime.aot_cache import CACHES_KEPT_MAX, AotCache, cache_folder

TRAINING_CLASS = "io.kvmessenger.connector.boot.SimulatedBoot"

BOOT = """
    import os, pathlib, time
    import simulated_jvm
    from kv_connector.runtime import aot_cache, jvm, preflight
    jar = preflight.check_jar(pathlib.Path(os.environ["KV_TEST_JAR"]))
    simulated = pathlib.Path(os.environ["KV_TEST_SIMULATED_JAR"])
    setup = simulated_jvm.setup(
        class_path=(jar.path, simulated),
        class_path_hashes=(jar.sha256, "simulated"),
        build_id=jar.build_id,
        cache_folder=aot_cache.cache_folder(),
        training_class="io.kvmessenger.connector.boot.SimulatedBoot",
    )
    setup = simulated_jvm.replace(setup, options=(*setup.options, *os.environ.get("KV_TEST_JVM_OPTIONS", "").split()))
    cached = setup.aot_cache.usable()
    wall, cpu = time.perf_counter(), time.process_time()
    jvm.boot_setup(setup)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print("cached" if cached else "plain", jar.build_id, setup.aot_cache.path)
    print(f"wall {wall * 1e3:.0f} ms, cpu {cpu * 1e3:.0f} ms")
"""


def wait_for(path: Path) -> None:
    limit = time.monotonic() + PROCESS_LIMIT_SECONDS
    while not path.exists():
        assert time.monotonic() < limit, f"{path} was not made: {sorted(path.parent.glob('*'))}"
        time.sleep(0.05)


@pytest.fixture
def own_jar(jar: preflight.Jar, tmp_path: Path) -> Path:
    """A copy that the test may replace."""
    copy = tmp_path / "own.jar"
    copy.write_bytes(jar.path.read_bytes())
    return copy


def change_code(jar: Path, build_id: str) -> str:
    """Gives the jar another build id, in the class and beside it, as another build would."""
    other = ("f" if build_id[0] != "f" else "e") + build_id[1:]
    changed = jar.with_suffix(".changed")
    with zipfile.ZipFile(jar) as source, zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry, source.read(entry).replace(build_id.encode(), other.encode()))
    changed.replace(jar)
    return other


def test_should_boot_with_the_cache_that_the_first_boot_made(run_with_jvm: RunPython, own_jar: Path) -> None:
    first = run_with_jvm(BOOT, KV_TEST_JAR=str(own_jar)).stdout.splitlines()
    state, _, made = first[0].split()
    assert state == "plain"
    wait_for(Path(made))
    second = run_with_jvm(BOOT, KV_TEST_JAR=str(own_jar), KV_TEST_JVM_OPTIONS="").stdout.splitlines()
    assert second[0].split()[0] == "cached"
    print(f"\nboot without class cache: {first[1]}; with it: {second[1]}")


def test_should_make_the_cache_before_the_first_boot_when_asked(run_with_jvm: RunPython, own_jar: Path) -> None:
    prepare = BOOT.split("cached =")[0] + "\n    from kv_connector.prepare import made\n    print(made(setup))\n"
    assert "the class cache is" in run_with_jvm(prepare, KV_TEST_JAR=str(own_jar)).stdout
    assert run_with_jvm(BOOT, KV_TEST_JAR=str(own_jar), KV_TEST_JVM_OPTIONS="").stdout.split()[0] == "cached"


def test_should_say_when_no_cache_can_be_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jar: preflight.Jar
) -> None:
    assert jar.path.exists()
    monkeypatch.setenv("KV_MESSENGER_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("not a folder")
    assert prepare.main([]) == 1
    assert "is the folder this user's own and writable?" in capsys.readouterr().err
    assert prepare.main(["--extra-config", "{"]) == 2
    assert "--extra-config is no JSON" in capsys.readouterr().err
    assert prepare.main(["--extra-config", "[]"]) == 2
    assert "--extra-config is [], expected a JSON object of options" in capsys.readouterr().err
    assert prepare.main(["--extra-config", '{"aot_cache": false}']) == 1
    assert "aot_cache is false, expected true" in capsys.readouterr().err


def test_should_run_the_new_code_when_the_jar_was_replaced(
    run_with_jvm: RunPython, own_jar: Path, jar: preflight.Jar
) -> None:
    made = run_with_jvm(BOOT, KV_TEST_JAR=str(own_jar)).stdout.split()[2]
    wait_for(Path(made))
    other = change_code(own_jar, jar.build_id)

    state, build_id, next_made = run_with_jvm(BOOT, KV_TEST_JAR=str(own_jar)).stdout.split()[:3]
    assert (state, build_id) == ("plain", other)
    assert next_made != made

    # The control: the JVM itself takes the old cache, runs the old code, and only the build id tells.
    forced = run_with_jvm(
        BOOT,
        KV_TEST_JAR=str(own_jar),
        KV_TEST_JVM_OPTIONS=f"-XX:AOTCache={made}",
        succeeds=False,
    )
    assert forced.returncode != 0
    assert f"the JVM runs build {jar.build_id} of the messenger, and the jar holds build {other}" in forced.stderr


def test_should_name_the_file_after_what_it_was_made_of(java: preflight.JavaRuntime, tmp_path: Path) -> None:
    def name(build: preflight.JavaRuntime = java, jar_hash: str = "1", option: str = "-Xmx64m") -> str:
        return AotCache(build, [jar_hash], [option], tmp_path).path.name

    other_java = replace(java, identity=java.identity + "x")
    assert len({name(), name(jar_hash="2"), name(option="-Xmx65m"), name(build=other_java)}) == 4
    assert name() == name()


def test_should_not_use_a_file_that_others_could_have_written(java: preflight.JavaRuntime, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    cache = AotCache(java, ["1"], [], folder)
    cache.path.touch(mode=0o600)
    assert cache.usable()
    cache.path.chmod(0o622)
    assert not cache.usable()
    cache.path.chmod(0o600)
    folder.chmod(0o777)
    assert not cache.usable()


def test_should_use_in_a_container_what_the_build_of_its_image_made(
    java: preflight.JavaRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers keep whole seconds of a file's time, and a pod runs as another user than the build."""
    home = tmp_path / "runtime"
    (home / "lib" / "server").mkdir(parents=True)
    (home / "release").write_text((java.home / "release").read_text())
    libjvm = home / "lib" / "server" / "libjvm.so"
    libjvm.write_bytes(b"a library")
    built = AotCache(preflight.find_java(str(home)), ["1"], [], tmp_path / "cache")
    built.path.parent.mkdir(mode=0o700)
    built.path.touch(mode=0o600)
    built.share()

    layer = tmp_path / "layer.tar"
    subprocess.run(["tar", "--mtime=@1700000000", "-C", tmp_path, "-cf", layer, "runtime", "cache"], check=True)
    container = tmp_path / "container"
    container.mkdir()
    subprocess.run(["tar", "-C", container, "-xf", layer], check=True)
    runs = AotCache(preflight.find_java(str(container / "runtime")), ["1"], [], container / "cache")
    assert runs.path.name == built.path.name
    root_made = {path: path.stat() for path in (runs.path, runs.path.parent)}
    monkeypatch.setattr(Path, "stat", lambda path: owned_by_root(root_made[path]))
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert runs.why_unusable() == ""


def owned_by_root(facts: os.stat_result) -> os.stat_result:
    return os.stat_result([*facts[:4], 0, *facts[5:10]])


def test_should_say_why_a_file_of_another_user_is_not_used(
    java: preflight.JavaRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = AotCache(java, ["1"], [], tmp_path)
    assert cache.why_unusable() == f"{cache.path}: No such file or directory"
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    made = os.stat_result([*tmp_path.stat()[:4], 4711, *tmp_path.stat()[5:10]])
    monkeypatch.setattr(Path, "stat", lambda _: made)
    assert "belongs to user 4711, expected this process's user" in cache.why_unusable()


def test_should_train_once_at_a_time_and_forget_old_files(java: preflight.JavaRuntime, tmp_path: Path) -> None:
    cache = AotCache(java, ["1"], [], tmp_path)
    for i in range(CACHES_KEPT_MAX + 2):
        old = tmp_path / f"{i}.aot"
        old.touch()
        os.utime(old, (i, i))
    lock = cache.path.with_suffix(".lock")
    lock.touch()
    assert not cache.train(java, [], "No")
    os.utime(lock, (1, 1))  # left by a training that never ended
    assert cache.train(java, [], "No")
    assert sorted(file.name for file in tmp_path.glob("*.aot")) == ["3.aot", "4.aot", "5.aot"]
    limit = time.monotonic() + PROCESS_LIMIT_SECONDS
    while lock.exists():
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert not cache.path.exists(), "a training that failed must not leave a file"


def test_should_boot_without_a_folder_to_write_to(run_with_jvm: RunPython, own_jar: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    done = run_with_jvm(BOOT, KV_TEST_JAR=str(own_jar), KV_MESSENGER_CACHE=str(blocked))
    assert done.stdout.startswith("plain")


def test_should_keep_its_files_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KV_MESSENGER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "kv-messenger" / "aot"
    monkeypatch.setenv("KV_MESSENGER_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own" / "aot"


def test_should_train_the_real_messenger_by_default() -> None:
    assert jvm.TRAINING_CLASS.replace(".", "/").rsplit("/", 1)[0] == jvm.ENTRY_CLASS.rsplit("/", 1)[0]
