"""Texts that look alike, but are different values (pure)."""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile

EXAMPLE_LENGTH = 30
"""So much of an example is enough to recognize the value."""

# So many characters before the first difference are shown of a longer text.
_BEFORE = 20


def look(text: str) -> str:
    """Return what texts have in common that differ only in case, Unicode forms, blanks or invisible characters."""
    if text.isascii() and text.isprintable():
        return " ".join(text.casefold().split())
    # Some blanks, such as tabs, are control characters.
    visible = (char for char in text if char.isspace() or unicodedata.category(char) not in ("Cc", "Cf"))
    folded = unicodedata.normalize("NFKC", "".join(visible)).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def differ_in_case(text: str, other: str) -> bool:
    """Return whether texts of one look differ only in case, or in blanks around them."""
    text, other = text.strip(), other.strip()
    if text.lower() == other.lower():
        return True
    # "ß" and "SS" differ in case, but not the letters "fi" and their ligature.
    are_usual = unicodedata.is_normalized("NFKC", text) and unicodedata.is_normalized("NFKC", other)
    return are_usual and text.casefold() == other.casefold()


def shown_apart(text: str, other: str) -> tuple[str, str]:
    """Return quoted examples of two texts of one look, with escapes where the difference could not be seen without."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))
    begin = same - _BEFORE if same >= EXAMPLE_LENGTH else 0
    parts = ["…" * (begin > 0) + value[begin : begin + EXAMPLE_LENGTH] for value in (text, other)]
    shown = repr(parts[0]), repr(parts[1])
    if differ_in_case(text, other) or look(shown[0]) != look(shown[1]):
        return shown
    return ascii(parts[0]), ascii(parts[1])


def pairs_alike(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each text that looks like one before it, after the first one that does."""
    first: dict[str, str] = {}
    for text in texts:
        other = first.setdefault(look(text), text)
        if other != text:
            yield other, text


def by_look(texts: Iterable[str]) -> dict[str, str]:
    """Return a text for each look."""
    return {look(text): text for text in texts}


def shown_with(text: str, known: Mapping[str, str]) -> str:
    """Return a quoted example of a text that no training row has, with the one of a training row that looks like it.

    Args:
        text: The text.
        known: The texts of the training rows, of `by_look`.
    """
    other = known.get(look(text))
    if other is None:
        return repr(text[:EXAMPLE_LENGTH])
    return "{} (a training row has {})".format(*shown_apart(text, other))


def difference(text: str, other: str) -> str:
    """Return in what two texts of one look differ, for a line of the log."""
    if differ_in_case(text, other):
        return "which differ only in case"
    return "which look alike: they differ in invisible characters, blanks or Unicode forms"
