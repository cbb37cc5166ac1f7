"""The size of a source when its compressed tables are unpacked."""

import zipfile
from collections.abc import Iterator

from kfp_distributed.components.prepare_data.sources.npz_file import seekable
from kfp_distributed.components.prepare_data.sources.source_files import DELIMITED, JSON_LINES, ending
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath, StoredPath
from kfp_distributed.components.prepare_data.sources.texts import compression_of, opened_bytes

_BLOCK_BYTES = 1 << 20
_TEXTS = JSON_LINES | DELIMITED


def _files(path: SourcePath) -> Iterator[SourcePath]:
    """Yield the file, or the files below the folder."""
    if isinstance(path, StoredPath):
        yield from path.objects()
    elif path.is_dir():
        yield from (file for file in sorted(path.rglob("*")) if file.is_file())
    else:
        yield path


def unpacked_sizes(path: SourcePath) -> Iterator[int]:
    """Yield numbers of bytes whose sum is the unpacked size of a file, or of the files of a folder.

    CSV and JSON files that are compressed with gzip or zstd are read. Of .npz files their directory counts. Other files
    have their own size. A damaged file counts as far as it can be read: its reader reports the damage.
    """
    for file in _files(path):
        kind = ending(file)
        try:
            if kind in _TEXTS and compression_of(file):
                with opened_bytes(file) as stream:
                    while block := stream.read(_BLOCK_BYTES):
                        yield len(block)
            elif kind == ".npz" and zipfile.is_zipfile(seekable(file)):
                with zipfile.ZipFile(seekable(file)) as archive:
                    yield sum(member.file_size for member in archive.infolist())
            else:
                yield file.stat().st_size
        except (OSError, zipfile.BadZipFile):
            continue
