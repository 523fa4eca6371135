"""Whatever is inside the jar has its licence beside it: licenses/README.md names it, and the text is there."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from conftest import REPOSITORY

from kv_connector.runtime import preflight

TABLE = REPOSITORY / "licenses" / "README.md"
OWN = "io/kvmessenger/"
OWN_GROUP = "io.kvmessenger:"
QUOTED = re.compile(r"`([^`]+)`")
VERSIONED = re.compile(r"META-INF/versions/\d+/")
POM = re.compile(r"META-INF/maven/([^/]+)/([^/]+)/pom\.properties")

UNNAMED = {"com.google.protobuf:protobuf-java"}
"""Not built by Maven, so that it names itself nowhere in its jar: found by its package alone."""


@dataclass(frozen=True)
class Row:
    """One work in the jar; one that another artifact holds may have no name of its own."""

    artifacts: tuple[str, ...]
    packages: tuple[str, ...]
    texts: tuple[str, ...]
    held_by_another: bool


def rows() -> list[Row]:
    cells = [
        line.strip("| ").split(" | ") for line in TABLE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"
    ]
    assert cells[0] == ["artifact", "its classes", "licence", "text"]
    return [
        Row(
            tuple(QUOTED.findall(artifacts)),
            tuple(QUOTED.findall(classes)),
            tuple(QUOTED.findall(texts)),
            held_by_another=artifacts.startswith("\N{EN DASH}"),
        )
        for artifacts, classes, _, texts in cells[2:]
    ]


def artifacts_in(jar: Path) -> set[str]:
    with zipfile.ZipFile(jar) as archive:
        found = [POM.fullmatch(name) for name in archive.namelist()]
    return {f"{pom[1]}:{pom[2]}" for pom in found if pom}


def unlisted_classes(jar: Path, packages: tuple[str, ...]) -> list[str]:
    """Classes of no listed package; those of a work within a work (``shaded``) need a package of that work's own."""
    with zipfile.ZipFile(jar) as archive:
        classes = [VERSIONED.sub("", name) for name in archive.namelist() if name.endswith(".class")]
    listed = (OWN, *packages)
    return [
        name
        for name in classes
        if not any(name.startswith(p) and ("/shaded/" not in name or "/shaded/" in p) for p in listed)
    ]


def all_packages() -> tuple[str, ...]:
    return tuple(package for row in rows() for package in row.packages)


def test_should_list_each_artifact_in_the_jar_and_no_other(jar: preflight.Jar) -> None:
    inside = {name for name in artifacts_in(jar.path) if not name.startswith(OWN_GROUP)}
    assert inside == {artifact for row in rows() for artifact in row.artifacts} - UNNAMED
    assert len(inside) > 10


def test_should_list_each_artifact_with_its_version_in_the_bill_of_materials(jar: preflight.Jar) -> None:
    with zipfile.ZipFile(jar.path) as archive:
        bill = json.loads(archive.read("META-INF/sbom/kv-messenger.cdx.json"))
    listed = {f"{part['group']}:{part['name']}": part for part in bill["components"]}
    foreign = {name for name in listed if not name.startswith(OWN_GROUP)}
    assert foreign == {artifact for row in rows() if not row.held_by_another for artifact in row.artifacts}
    assert all(listed[name]["version"] and listed[name]["licenses"] and listed[name]["purl"] for name in foreign)
    assert bill["metadata"]["component"]["name"] == "connector"
    assert "serialNumber" not in bill, "two builds of one source would differ"


def test_should_list_the_package_of_each_class(jar: preflight.Jar) -> None:
    assert unlisted_classes(jar.path, all_packages()) == []


def test_should_have_classes_of_each_listed_package(jar: preflight.Jar) -> None:
    with zipfile.ZipFile(jar.path) as archive:
        names = [VERSIONED.sub("", name) for name in archive.namelist()]
    assert [package for package in all_packages() if not any(name.startswith(package) for name in names)] == []


def test_should_pack_each_text_as_it_is(jar: preflight.Jar) -> None:
    named = {text for row in rows() for text in row.texts} - {"LICENSE"}
    assert named == {file.name for file in TABLE.parent.iterdir()} - {"README.md"}
    with zipfile.ZipFile(jar.path) as archive:
        for name in ("LICENSE", "NOTICE", *(f"licenses/{text}" for text in named), "licenses/README.md"):
            assert archive.read(f"META-INF/{name}") == (REPOSITORY / name).read_bytes(), name


def test_should_find_what_is_not_listed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "more.jar", "w") as jar:
        jar.writestr("META-INF/maven/org.example/more/pom.properties", "")
        jar.writestr("META-INF/versions/21/org/example/More.class", "")
        jar.writestr("io/netty/util/internal/shaded/org/example/Hidden.class", "")
        jar.writestr("io/netty/util/Known.class", "")
    assert artifacts_in(tmp_path / "more.jar") == {"org.example:more"}
    assert unlisted_classes(tmp_path / "more.jar", all_packages()) == [
        "org/example/More.class",
        "io/netty/util/internal/shaded/org/example/Hidden.class",
    ]
