"""The size of a source when its compressed tables are unpacked."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

from kfp_distributed.components.prepare_data.csv_format import opened_bytes
from kfp_distributed.components.prepare_data.source_files import JSON_LINES, TABLES, ending

_BLOCK_BYTES = 1 << 20
_TEXTS = JSON_LINES | {".csv"}


def unpacked_sizes(path: Path) -> Iterator[int]:
    """Yield numbers of bytes whose sum is the unpacked size of a file, or of the files of a folder.

    CSV and JSON files, which may be compressed with gzip or zstd, are read. Of .npz files their directory counts. Other
    files have their size on disk. A damaged file counts as far as it can be read: its reader reports the damage.
    """
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if not file.is_file():
            continue
        kind = ending(file)
        try:
            if kind in _TEXTS:
                with opened_bytes(file) as stream:
                    while block := stream.read(_BLOCK_BYTES):
                        yield len(block)
            elif kind in TABLES and zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    yield sum(member.file_size for member in archive.infolist())
            else:
                yield file.stat().st_size
        except (OSError, zipfile.BadZipFile):
            continue
