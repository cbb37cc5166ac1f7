"""Reads image files as one array, and says what that changes about them."""

import io
import math
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from kfp_distributed.components.prepare_data.sources.chunks import CountRows, FilePart, ReadPart
from kfp_distributed.components.prepare_data.sources.read_rows import ReadAgain, Reject, Rows, read_errors
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath, StoredPath

# Relative difference of two aspect ratios up to which an image is not called squashed: 640x480 and 640x500 are alike.
ASPECT_TOLERANCE = 0.05
# Pillow modes without colour: black and white, grey, grey with transparency.
_GREY = ("1", "L", "LA", "La")
# EXIF tag of the orientation, and its values for images that lie on their side.
_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)
SAMPLE = 100
"""Headers that are read to choose the form. So many nearly always show whether any image has colour."""
LARGE = 128 * 128
"""Pixels of an image whose decoding takes longer than handing it to another thread does."""

_Result = TypeVar("_Result")


class ImageForm(NamedTuple):
    """What the header of an image file says.

    Attributes:
        is_grey: Whether it has no colour.
        size: Width and height as displayed.
        is_transparent: Whether it has an alpha channel or a transparent colour.
    """

    is_grey: bool
    size: tuple[int, int]
    is_transparent: bool


class ImageDecoder:
    """Decodes images into one form, and counts what that changes about them.

    Args:
        column: Name of the column, for ReadAgain.
        shape: Height, width and channels (1 or 3) of the decoded images.
        is_open: Whether the channels were chosen by a few images. Then an image with colour is no grey one.
    """

    def __init__(self, column: str, shape: tuple[int, int, int], *, is_open: bool) -> None:
        self._column, self._shape, self._is_open = column, shape, is_open
        # Few forms are different, so a million images need little memory.
        self._forms = Counter[ImageForm]()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return self._shape

    def notes(self) -> list[str]:
        """Return one line for each way in which the decoded images are changed."""
        return _notes(self._forms, self._shape)

    def forget(self) -> None:
        """Count from the beginning."""
        self._forms.clear()

    def take_late(self) -> Counter[ImageForm]:
        """Return the forms of the counted images, and forget them."""
        found, self._forms = self._forms, Counter()
        return found

    def add_late(self, forms: Counter[ImageForm]) -> None:
        """Count images by their forms."""
        self._forms.update(forms)

    def count(self, form: ImageForm) -> None:
        """Count an image."""
        self._forms[form] += 1

    def decode(self, image: SourcePath | bytes, name: str) -> tuple[NDArray[np.uint8], ImageForm]:
        """Return the pixels of an image, and its form. It may be called in several threads.

        Args:
            image: File or its content.
            name: Name for errors.

        Raises:
            ValueError: It is not an image.
            ReadAgain: It has colour, and the first images are grey.
        """
        height, width, channels = self._shape
        if isinstance(image, StoredPath) and image.is_file():
            image = image.read_bytes()  # With one request, as nearly all of it is needed.
        with opened_image(image, name) as opened:
            form = _form(opened)
            if channels == 1 and self._is_open and not form.is_grey:
                raise ReadAgain(image_shapes={self._column: (height, width, 3)})
            turned = ImageOps.exif_transpose(opened)
            return np.asarray(turned.convert("L" if channels == 1 else "RGB").resize((width, height))), form


def decode_in_order(tasks: Iterable[Callable[[], _Result]]) -> Iterator[_Result]:
    """Yield the results of functions in their order, which run on all processors. Pillow decodes without the GIL."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    running: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(count) as pool:
        try:
            for task in tasks:
                running.append(pool.submit(task))
                # Decoded images wait in memory.
                if len(running) > 2 * count:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class Images:
    """Image files as an array uint8 [n, height, width, 1 or 3], which are decoded when slices are read in order.

    Each file is opened once, but for some of them, whose headers are read to choose the form: grey if these are grey.
    An image that cannot be decoded is black, and `usable` leaves out its row.

    Args:
        files: Paths of the files.
        column: Name of the column.
        size: Width and height to which the images are scaled; None for those of the first image by name.
        shape: Height, width and channels where these are known; None to choose them.

    Raises:
        ValueError: No file is an image, or one is a folder or cannot be read from the disk.
    """

    def __init__(
        self, files: Sequence[SourcePath], column: str, size: tuple[int, int] | None, shape: tuple[int, int, int] | None
    ) -> None:
        self._files = files
        first_file = min(files)
        first = _first_form(first_file, files)
        some = (_try(form_of, file) for file in files[:: max(1, len(files) // SAMPLE)] if file != first_file)
        forms = [first, *(form for form in some if isinstance(form, ImageForm))]
        self._decoder = ImageDecoder(column, shape or shape_of(forms, first, size), is_open=shape is None)
        self._are_large = median(math.prod(form.size) for form in forms) >= LARGE
        self._pixels: Iterator[tuple[NDArray[np.uint8], ImageForm] | str] = iter(())
        self._next = -1
        self._problems: dict[int, str] = {}
        self.dtype, self.shape = np.dtype("uint8"), (len(files), *self._decoder.shape)

    def notes(self) -> list[str]:
        """Return one line for each way in which the images that were read are stored otherwise than in their files."""
        return self._decoder.notes()

    def name_of_row(self, row: int) -> str:
        """Return the name of the file of a row with its folder."""
        return file_name(self._files[row])

    def take_late(self) -> Counter[ImageForm]:
        """Return the forms of the images that were read, and forget them."""
        return self._decoder.take_late()

    def add_late(self, forms: Counter[ImageForm]) -> None:
        """Count images by their forms."""
        self._decoder.add_late(forms)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the images that wait."""
        return {**self.__dict__, "_pixels": iter(()), "_next": -1}

    def __getitem__(self, rows: slice) -> NDArray[np.uint8]:
        begin, end, _ = rows.indices(len(self._files))
        if begin != self._next:
            self._decoder.forget()
            tasks = (partial(_try, self._decoder.decode, file) for file in self._files[begin:])
            self._pixels = decode_in_order(tasks) if self._are_large else (task() for task in tasks)
        pixels = np.zeros((end - begin, *self._decoder.shape), np.uint8)
        self._problems = {}
        for row, decoded in enumerate(islice(self._pixels, end - begin)):
            if isinstance(decoded, str):
                self._problems[row] = f"cannot be used: {decoded}"
            else:
                image, form = decoded
                pixels[row] = image.reshape(self._decoder.shape)
                self._decoder.count(form)
        self._next = end
        return pixels

    def usable(self, read: ReadPart) -> ReadPart:
        """Return a function that reads rows without those whose images cannot be decoded.

        Args:
            read: Function that reads rows with slices of these images.
        """
        return partial(self._read_usable, read)

    def _read_usable(self, read: ReadPart, part: FilePart, reject: Reject, count_rows: CountRows) -> Iterator[Rows]:
        for rows, numbers in read(part, reject, count_rows):
            for row, problem in self._problems.items():
                reject(int(numbers[row]), "", problem)
            is_usable = np.ones(len(numbers), np.bool_)
            is_usable[[*self._problems]] = False
            yield Rows(rows.filter(pa.array(is_usable)) if self._problems else rows, numbers[is_usable])


def _first_form(first_file: SourcePath, files: Sequence[SourcePath]) -> ImageForm:
    """Return the form of the first image by name that can be read, which nearly always is that of the first file.

    Raises:
        ValueError: There is none.
    """
    first = _try(form_of, first_file)
    if isinstance(first, ImageForm):
        return first
    for file in sorted(files)[1:]:
        form = _try(form_of, file)
        if isinstance(form, ImageForm):
            return form
    raise ValueError(f"none of {len(files):,} images can be read: {first}")


def _try(read: Callable[[SourcePath, str], _Result], file: SourcePath) -> _Result | str:
    """Return what a function reads from an image; if the file is not an image or a damaged one, what is wrong.

    Raises:
        ValueError: The file is a folder, or the machine cannot read it.
    """
    try:
        return read(file, file_name(file))
    except ValueError as error:
        # Pillow raises errors of this type for damaged images, too, but without a number.
        is_of_machine = isinstance(error.__cause__, OSError) and error.__cause__.errno is not None
        if is_of_machine or file.is_dir():
            raise
        return str(error)


def shape_of(forms: Iterable[ImageForm], first: ImageForm, size: tuple[int, int] | None) -> tuple[int, int, int]:
    """Return the height, width and channels in which images are stored: grey if all of them are grey.

    Args:
        forms: Forms of some images.
        first: Form of the first image.
        size: Width and height; None for those of the first image.
    """
    width, height = size or first.size
    return height, width, 1 if all(form.is_grey for form in forms) else 3


def file_name(file: SourcePath) -> str:
    """Return the name of a file with its folder, for errors."""
    return f"{file.parent.name}/{file.name}"


def _notes(forms: Counter[ImageForm], shape: tuple[int, int, int]) -> list[str]:
    """Return one line for each way in which images are changed, with the number of the images."""
    height, width, channels = shape
    images = f"of {forms.total():,} images"
    grey = sum(count for form, count in forms.items() if form.is_grey)
    squashed = sum(count for form, count in forms.items() if not _is_alike(form.size, (width, height)))
    transparent = sum(count for form, count in forms.items() if form.is_transparent)
    lines = []
    if channels == 1 and grey < forms.total():
        lines.append(
            f"{forms.total() - grey:,} {images} have colour and are stored in grey, as those of the first source or of "
            "the dataset in like are"
        )
    if grey and channels == 3:
        lines.append(
            f"{grey:,} {images} are grey and are stored in colour, with three equal channels, because the others have "
            "colour. To store one channel, convert all images to grey"
        )
    if squashed:
        lines.append(
            f"{squashed:,} {images} have another aspect ratio than {width}x{height}, by more than "
            f"{ASPECT_TOLERANCE:.0%}, and are squashed or stretched to that size. Set image_size to the usual aspect "
            "ratio, or crop or pad these images before"
        )
    if transparent:
        lines.append(
            f"{transparent:,} {images} can have transparent pixels. Their transparency is left out, so that the "
            "colours below it appear. To choose a background, paint the images on it before"
        )
    return lines


def _is_alike(size: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether two sizes have about the same aspect ratio."""
    ratio = size[0] * other[1] / (size[1] * other[0])
    return 1 / (1 + ASPECT_TOLERANCE) <= ratio <= 1 + ASPECT_TOLERANCE


def form_of(image: SourcePath | bytes, name: str) -> ImageForm:
    """Read the header of an image.

    Args:
        image: File or its content.
        name: Name for errors.

    Raises:
        ValueError: It is not an image.
    """
    with opened_image(image, name) as opened:
        return _form(opened)


def _form(image: Image.Image) -> ImageForm:
    width, height = image.size
    # Without the check, Pillow decodes a whole PNG to look for EXIF data at its end.
    if ("exif" in image.info or image.format == "TIFF") and image.getexif().get(_ORIENTATION) in _SIDEWAYS:
        width, height = height, width
    return ImageForm(image.mode in _GREY, (width, height), image.has_transparency_data)


def _content(source: SourcePath | bytes) -> Path | io.BytesIO | io.RawIOBase:
    """Return what Pillow opens."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    return source.open() if isinstance(source, StoredPath) else source


@contextmanager
def opened_image(source: SourcePath | bytes, name: str) -> Iterator[Image.Image]:
    """Open an image.

    Args:
        source: File or its content.
        name: Name for errors.

    Raises:
        ValueError: It is not an image.
    """
    # Pillow raises SyntaxError for damaged files of some formats, and RuntimeError for AVIF.
    with read_errors(f"image {name}", SyntaxError, RuntimeError, Image.DecompressionBombError):
        if not isinstance(source, bytes) and source.is_dir():
            raise ValueError("it is a folder: put images directly into the folder of their class")
        try:
            image = Image.open(_content(source))
        except UnidentifiedImageError:
            raise ValueError("it is not an image: remove it, or convert it to PNG or JPEG") from None
        with image:
            if image.mode[0] in "IF":
                raise ValueError("it has more than 8 bits per color: convert it to 8 bits")
            yield image
