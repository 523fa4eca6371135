"""What a file of ``torch.save`` is told apart by, without torch: nothing in the file is run. Pure but for the reading.

Such a file is a zip archive with a list of its tensors and one member for the numbers of each; the archive's directory
has a checksum of each member. Before torch 1.6 it was a stream, of which samples are taken.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

from kv_connector.naming.weights_digest import Tensor

_LOCAL_HEADER = struct.Struct("<26xHH")
"""What lies before a member's bytes: two lengths of more, at its end."""
_OF_THE_WRITER = ".data/serialization_id"
"""The one member that may differ in two files of the same tensors."""
_STREAM_SAMPLES = 256


def parts_of(file: Path) -> dict[str, Tensor]:
    """The file's parts by name, with checksums; raises OSError, ValueError or zipfile.BadZipFile."""
    if not zipfile.is_zipfile(file):
        return _stream(file)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    # The first folder is the name that the file had when it was written.
    named = {member.filename.partition("/")[2]: member for member in members}
    return {name: _member(file, each) for name, each in named.items() if name != _OF_THE_WRITER}


def _member(file: Path, member: zipfile.ZipInfo) -> Tensor:
    def read(position: int, length: int) -> bytes:
        with file.open("rb") as content:
            content.seek(member.header_offset)
            more = sum(_LOCAL_HEADER.unpack(content.read(_LOCAL_HEADER.size)))
            content.seek(member.header_offset + _LOCAL_HEADER.size + more + position)
            return content.read(length)

    return Tensor(f"{member.CRC:08x} {member.file_size}", member.compress_size, read)


def _stream(file: Path) -> dict[str, Tensor]:
    size = file.stat().st_size
    bounds = [index * size // _STREAM_SAMPLES for index in range(_STREAM_SAMPLES + 1)]

    def part(begin: int, end: int) -> Tensor:
        def read(position: int, length: int) -> bytes:
            with file.open("rb") as content:
                content.seek(begin + position)
                return content.read(length)

        return Tensor(str(size), end - begin, read)

    return {f"{index:03}": part(*bounds[index : index + 2]) for index in range(_STREAM_SAMPLES)}
