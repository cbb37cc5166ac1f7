"""Columns of images in a table, which are decoded while the rows are read."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.sources.read_rows import Reject, RejectedRows, Rows, read_rows
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath
from kfp_distributed.components.prepare_data.tables.image_files import (
    LARGE,
    SAMPLE,
    ImageDecoder,
    ImageForm,
    decode_in_order,
    form_of,
    shape_of,
)

# Each pixel has 8 bytes while a batch is checked, as in batches of arrays.
_BATCH_PIXELS = 2**24 // 8

ReadRows = Callable[[SourcePath, Sequence[str]], Iterator[Rows]]
"""Yields the rows of a file. It gets the names of the columns."""


_Image = tuple[NDArray[np.uint8], ImageForm]
"""Pixels of an image, and what its header says."""


class ImageColumns:
    """Columns of encoded images, which become fixed-size lists of uint8: height, width and channels (1 or 3).

    Args:
        decoders: Decoder of each column.
        are_large: Whether the images are decoded on all processors.
        can_drop: Whether a column may be named in drop_columns. Default: true.
    """

    def __init__(self, decoders: Mapping[str, ImageDecoder], *, are_large: bool = False, can_drop: bool = True) -> None:
        self._decoders, self._are_large, self._can_drop = decoders, are_large, can_drop
        self.shapes = {name: decoder.shape for name, decoder in decoders.items()}

    @property
    def row_pixels(self) -> int:
        """Bytes of the decoded images of a row."""
        return sum(map(math.prod, self.shapes.values()))

    def notes(self) -> list[str]:
        """Return one line for each way in which the decoded images are changed."""
        subject = "column {!r}: " if len(self._decoders) > 1 else ""
        return [subject.format(name) + note for name, decoder in self._decoders.items() for note in decoder.notes()]

    def forget(self) -> None:
        """Count the images from the beginning."""
        for decoder in self._decoders.values():
            decoder.forget()

    def take_late(self) -> dict[str, Counter[ImageForm]]:
        """Return the forms of the images of each column that were counted, and forget them."""
        return {name: decoder.take_late() for name, decoder in self._decoders.items()}

    def add_late(self, found: Mapping[str, Counter[ImageForm]]) -> None:
        """Count images of each column by their forms."""
        for name, forms in found.items():
            self._decoders[name].add_late(forms)

    def decoded(self, parts: Iterable[Rows], reject: Reject) -> Iterator[Rows]:
        """Yield rows with decoded images, in batches of bounded size.

        Args:
            parts: The rows as they are in the file.
            reject: Is called for each row with an image that is missing or damaged. The row is left out.

        Raises:
            ValueError: A column has no images in this file.
            ColourFound: An image has colour, and the first ones are grey.
        """
        batch_rows = max(1, _BATCH_PIXELS // max(1, self.row_pixels))
        for rows, numbers in parts:
            values = {name: _Encoded(name, rows[name], can_drop=self._can_drop) for name in self._decoders}
            tasks = (partial(self._decode, values, row) for row in range(len(numbers)))
            images = decode_in_order(tasks) if self._are_large else (task() for task in tasks)
            for begin in range(0, len(numbers), batch_rows):
                part = Rows(rows.slice(begin, batch_rows), numbers[begin : begin + batch_rows])
                usable = self._usable(part, islice(images, len(part.numbers)), reject)
                if len(usable.numbers):
                    yield usable

    def _decode(self, values: Mapping[str, "_Encoded"], row: int) -> dict[str, _Image | str]:
        """Return the images of a row; for one that cannot be used the problem."""
        images: dict[str, _Image | str] = {}
        for name, decoder in self._decoders.items():
            content = values[name].content(row)
            try:
                images[name] = values[name].problem(row) if content is None else decoder.decode(content, name)
            except ValueError as error:
                images[name] = _problem(error)
        return images

    def _usable(self, rows: Rows, images: Iterable[Mapping[str, _Image | str]], reject: Reject) -> Rows:
        """Return the rows all of whose images can be used, with their pixels, and count these images."""
        usable: list[int] = []
        pixels: dict[str, list[NDArray[np.uint8]]] = {name: [] for name in self.shapes}
        for row, images_of_row in enumerate(images):
            decoded = {name: image for name, image in images_of_row.items() if not isinstance(image, str)}
            for name, image in images_of_row.items():
                if isinstance(image, str):
                    reject(int(rows.numbers[row]), name, image)
                    break
            else:
                usable.append(row)
                for name, (image_pixels, form) in decoded.items():
                    pixels[name].append(image_pixels)
                    self._decoders[name].count(form)
        batch = rows.rows.take(pa.array(usable, pa.int64())) if len(usable) < rows.rows.num_rows else rows.rows
        for name, shape in self.shapes.items():
            flat = np.array(pixels[name], np.uint8).reshape(-1)
            values = pa.FixedSizeListArray.from_arrays(pa.array(flat), math.prod(shape))
            batch = batch.set_column(batch.schema.names.index(name), pa.field(name, values.type), values)
        return Rows(batch, rows.numbers[usable])


def choose_images(names: Sequence[str], files: Sequence[SourcePath], read: ReadRows, options: Options) -> ImageColumns:
    """Choose the form of each column of images by the headers of some of them.

    Args:
        names: Names of the columns.
        files: The files.
        read: Function that reads them.
        options: Forms that are known, the size, and what becomes of rows that cannot be used.

    Raises:
        ValueError: A column has no image that can be used.
    """
    decoders, pixels = {}, [0.0]
    for name in names:
        known = options.image_shapes.get(name)
        forms = _some_forms(
            name, files, read, RejectedRows(options.on_bad_row), is_needed=known is None, can_drop=not options.inputs
        )
        shape = known or shape_of(forms, forms[0], options.image_size)
        decoders[name] = ImageDecoder(name, shape, is_open=known is None)
        if forms:
            pixels.append(median(math.prod(form.size) for form in forms))
    return ImageColumns(decoders, are_large=max(pixels) >= LARGE, can_drop=not options.inputs)


def _some_forms(
    name: str, files: Sequence[SourcePath], read: ReadRows, rejected: RejectedRows, *, is_needed: bool, can_drop: bool
) -> list[ImageForm]:
    """Read the headers of the first images of files from the first to the last one."""
    forms: list[ImageForm] = []
    some = files[:: max(1, len(files) // SAMPLE)]
    for file in some:
        of_file = _forms(name, file, read, partial(rejected.add, file.name), can_drop=can_drop)
        forms += islice(of_file, -(-SAMPLE // len(some)))
    for file in files:
        if forms or not is_needed:
            return forms
        forms += islice(_forms(name, file, read, lambda *_: None, can_drop=can_drop), 1)
    if not forms:
        rejected.check()
        raise ValueError("; ".join([f"column {name!r} has no image that can be used", *rejected.notes()]))
    return forms


def _forms(name: str, file: SourcePath, read: ReadRows, reject: Reject, *, can_drop: bool) -> Iterator[ImageForm]:
    """Yield what the headers of the images of a file say."""
    for rows, numbers in read_rows(file.name, read(file, [name])):
        values = _Encoded(name, rows[name], can_drop=can_drop)
        for row, number in enumerate(numbers.tolist()):
            content = values.content(row)
            try:
                if content is None:
                    reject(number, name, values.problem(row))
                else:
                    yield form_of(content, name)
            except ValueError as error:
                reject(number, name, _problem(error))


def _problem(error: ValueError) -> str:
    """Return why an image cannot be read. The row names it, so its name is left out."""
    return f"cannot be read: {error.__cause__ or error}"


class _Encoded:
    """Images in a column, each of which is the content of a file and its path.

    Args:
        name: Name of the column, for errors.
        values: Structs with the fields "bytes" and "path".
        can_drop: Whether the column may be named in drop_columns.

    Raises:
        ValueError: The values are of another type.
    """

    def __init__(self, name: str, values: pa.Array, *, can_drop: bool) -> None:
        kind = values.type
        self._fields: dict[str, pa.Array] = {}
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            self._fields = {field.name: pc.struct_field(values, field.name) for field in kind}
        elif not pa.types.is_null(kind):
            raise ValueError(
                f"column {name!r} has values of type {kind}, but images in other files or in the dataset in like: "
                f"write images into all files{', or leave the column out (drop_columns)' if can_drop else ''}"
            )

    def content(self, row: int) -> bytes | None:
        """Return the content of an image; None if it has none."""
        content = self._value("bytes", row)
        return content if isinstance(content, bytes) else None

    def problem(self, row: int) -> str:
        """Return why an image has no content."""
        path = self._value("path", row)
        if path is None:
            return "is missing: add it, or leave the row out"
        return (
            f"has only the path {str(path)[:60]!r} of an image file, not its content: save the dataset with "
            "Dataset.save_to_disk, which adds the content, where the file is"
        )

    def _value(self, field: str, row: int) -> object:
        return self._fields[field][row].as_py() if field in self._fields else None
