"""Reads the arrays of an .npz file, without trust in its names and sizes."""

import io
import math
import shutil
import tempfile
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.sources.stored_files import RangeStream, SourcePath, StoredPath

DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError)
"""Errors of zipfile for a damaged archive."""

# NumPy refuses to read headers of more than 10,000 bytes. Their version and length are in up to 12 bytes before them.
_HEADER_BYTES = 10_012
# The header is the text of a Python literal, so reading it raises the errors of the parser, too.
_HEADER_ERRORS = (ValueError, TypeError, LookupError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError)
_CHUNK_BYTES = 2**20
# Bit of the flags of an encrypted member.
_IS_ENCRYPTED = 1
_SAVE_AGAIN = "save arrays of numbers or texts (objects: array.astype(str)) with numpy.savez"


class _Header(NamedTuple):
    """Header of a member.

    Attributes:
        shape: Shape of the array.
        is_fortran: Whether the first axis is contiguous.
        dtype: Type of the array.
        offset: Size of the header in bytes.
    """

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    offset: int


def seekable(file: SourcePath) -> Path | RangeStream:
    """Return what zipfile opens: the path of a local file, or the content of an object."""
    return file.open() if isinstance(file, StoredPath) else file


def array_names(file: SourcePath) -> list[str]:
    """Return the names of the arrays of an .npz file.

    Raises:
        ValueError: A member is not named NAME.npy, or two have one name.
        zipfile.BadZipFile: The file is not a complete ZIP archive.
    """
    with zipfile.ZipFile(seekable(file)) as archive:
        # `filename` ends before a null character and has "/" for the system's separator.
        members = [member.orig_filename for member in archive.infolist()]
    for member, count in Counter(members).items():
        if not member.endswith(".npy") or member == ".npy" or {"/", "\\", "\0"} & {*member}:
            raise ValueError(
                f"its member {member!r} is not named NAME.npy, without folders: write the arrays into one file with "
                "numpy.savez, under names without '/'"
            )
        if count > 1:
            raise ValueError(f"its member {member!r} occurs {count} times: write each array once, with numpy.savez")
    return [member.removesuffix(".npy") for member in members]


def read_arrays(file: SourcePath, names: Sequence[str], scratch: Path) -> dict[str, NDArray[Any]]:
    """Unpack arrays into a new folder, and map them into memory.

    Nothing is written before all of them are checked. The archive chooses neither a path nor more bytes than it
    declares.

    Args:
        file: The .npz file.
        names: Names of the arrays, of those that `array_names` returns.
        scratch: Folder for the unpacked arrays.

    Raises:
        ValueError: A member is no array of numbers or texts, has another size than it declares, or the arrays are
            larger than the free space of the disk.
        zipfile.BadZipFile: A member is damaged. The other errors of DAMAGED are possible, too.
    """
    arrays: dict[str, NDArray[Any]] = {}
    with zipfile.ZipFile(seekable(file)) as archive:
        members = {name: archive.getinfo(f"{name}.npy") for name in names}
        headers = {name: _read_header(archive, member) for name, member in members.items()}
        size, free = sum(member.file_size for member in members.values()), shutil.disk_usage(scratch).free
        if size > free:
            raise ValueError(
                f"its arrays have {size:,} bytes, but the step's disk has {free:,} free: give the step more disk "
                "space, or name arrays in drop_columns"
            )
        # The folder is new, because `scratch` may have a downloaded source under any name.
        folder = Path(tempfile.mkdtemp(dir=scratch))
        for number, (name, header) in enumerate(headers.items()):
            unpacked = folder / f"{number}.npy"
            _unpack(archive, members[name], unpacked)
            arrays[name] = np.memmap(
                unpacked, header.dtype, "r", header.offset, header.shape, order="F" if header.is_fortran else "C"
            )
    return arrays


def _read_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Header:
    """Read the header of a member, and check that the member has the size that its header declares."""
    if member.flag_bits & _IS_ENCRYPTED:
        raise ValueError(f"its member {member.filename!r} is encrypted: {_SAVE_AGAIN}")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"its member {member.filename!r} has a compression that NumPy does not write: {_SAVE_AGAIN}")
    with archive.open(member) as stream:
        # A header can declare to have 4 GB itself. No more than a usual one is read.
        start = io.BytesIO(stream.read(_HEADER_BYTES))
    try:
        version = np.lib.format.read_magic(start)
        # The third version is for fields whose names are not Latin-1. An array with fields is refused anyway.
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        header = _Header(*read(start), start.tell())
    except _HEADER_ERRORS:
        raise ValueError(f"its member {member.filename!r} is not a NumPy array: {_SAVE_AGAIN}") from None
    if header.dtype.hasobject:
        # Unpickling objects can run any code.
        raise ValueError(f"its member {member.filename!r} holds Python objects: {_SAVE_AGAIN}")
    if not header.dtype.itemsize:
        # Any number of empty values would have the right size.
        raise ValueError(f"its member {member.filename!r} holds values of 0 bytes: {_SAVE_AGAIN}")
    size = header.offset + header.dtype.itemsize * math.prod(header.shape)
    if size != member.file_size or min(header.shape, default=0) < 0:
        raise ValueError(
            f"its member {member.filename!r} has {member.file_size:,} bytes, but its header declares an array "
            f"{header.dtype} {list(header.shape)} of {size:,} bytes: write it again with numpy.savez"
        )
    return header


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    """Write the content of a member into a new file, up to the size that the archive declares."""
    left = member.file_size
    with archive.open(member) as stream, target.open("xb") as file:
        while left and (chunk := stream.read(min(left, _CHUNK_BYTES))):
            left -= file.write(chunk)
    if left:
        raise ValueError(f"its member {member.filename!r} ends {left:,} bytes early: copy the file again")
