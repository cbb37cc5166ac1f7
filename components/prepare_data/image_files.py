"""Reads image files as one array, and says what that changes about them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from kfp_distributed.components.prepare_data.reading import reading

# Relative difference of two aspect ratios up to which an image is not called squashed: 640x480 and 640x500 are alike.
ASPECT_TOLERANCE = 0.05
# Pillow modes without colour: black and white, grey, grey with transparency.
_GREY = ("1", "L", "LA", "La")
# EXIF tag of the orientation, and its values for images that lie on their side.
_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)


class _Form(NamedTuple):
    """What the header of an image file says.

    Attributes:
        is_grey: Whether it has no colour.
        size: Width and height as displayed.
        is_transparent: Whether it has an alpha channel or a transparent colour.
    """

    is_grey: bool
    size: tuple[int, int]
    is_transparent: bool


class Images:
    """Image files as an array uint8 [n, height, width, 1 or 3], which are decoded when a slice is read.

    All images are stored in colour if any of them has colour, else in grey. The headers of all files are read for it,
    which takes about 0.1 ms for each. An image is decoded in one or two milliseconds.

    Args:
        files: Paths of the files.
        size: Width and height to which the images are scaled; None for those of the first image by name.

    Attributes:
        notes: One line for each way in which images are stored otherwise than in their files.

    Raises:
        ValueError: A file is not an image.
    """

    def __init__(self, files: Sequence[Path], size: tuple[int, int] | None) -> None:
        self._files = files
        # Few forms are different, so a million images need little memory.
        forms = Counter(map(_form, files))
        self._size = size = size or _form(min(files)).size
        # Each letter of a Pillow mode is one channel.
        self._mode = "L" if all(form.is_grey for form in forms) else "RGB"
        self.notes = _notes(forms, size, is_grey=self._mode == "L")
        self.dtype, self.shape = np.dtype("uint8"), (len(files), *size[::-1], len(self._mode))

    def __getitem__(self, rows: slice) -> NDArray[np.uint8]:
        return np.stack([self._decode(file) for file in self._files[rows]])

    def _decode(self, file: Path) -> NDArray[np.uint8]:
        with _opened(file) as image:
            return np.asarray(ImageOps.exif_transpose(image).convert(self._mode).resize(self._size))


def _notes(forms: Counter[_Form], size: tuple[int, int], *, is_grey: bool) -> list[str]:
    """Return one line for each way in which images are changed, with the number of the images."""
    width, height = size
    images = f"of {forms.total():,} images"
    grey = sum(count for form, count in forms.items() if form.is_grey)
    squashed = sum(count for form, count in forms.items() if not _is_alike(form.size, size))
    transparent = sum(count for form, count in forms.items() if form.is_transparent)
    lines = []
    if grey and not is_grey:
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


def _form(file: Path) -> _Form:
    """Read the header of an image."""
    with _opened(file) as image:
        width, height = image.size
        # Without the check, Pillow decodes a whole PNG to look for EXIF data at its end.
        if ("exif" in image.info or image.format == "TIFF") and image.getexif().get(_ORIENTATION) in _SIDEWAYS:
            width, height = height, width
        return _Form(image.mode in _GREY, (width, height), image.has_transparency_data)


@contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
    with reading(f"image {file.parent.name}/{file.name}", SyntaxError, Image.DecompressionBombError):
        if file.is_dir():
            raise ValueError("it is a folder: put images directly into the folder of their class")
        try:
            image = Image.open(file)
        except UnidentifiedImageError:
            raise ValueError("it is not an image: remove it, or convert it to PNG or JPEG") from None
        with image:
            if image.mode[0] in "IF":
                raise ValueError("it has more than 8 bits per color: convert it to 8 bits")
            yield image
