"""Booleans in texts: a column of nothing else has the values "false" and "true", whatever its format is (pure)."""

from collections.abc import Collection

_BOOLEANS = {"false", "true"}


def are_booleans(texts: Collection[str]) -> bool:
    """Return whether there are texts, and all of them spell a boolean, such as "True" or "FALSE"."""
    return len(texts) > 0 and all(text.lower() in _BOOLEANS for text in texts)


def value_names(texts: Collection[str], known: Collection[str] | None = None) -> dict[str, str]:
    """Return the name of the value that each text of a column spells: the text itself, unless all are booleans.

    Args:
        texts: The different texts of the column.
        known: Names of the values in the dataset that the column is read like. A boolean gets the spelling of that
            dataset. Default: there is none, and booleans become "false" and "true", as Parquet and JSON spell them.
    """
    if known is None:
        return {text: text.lower() for text in texts} if are_booleans(texts) else {text: text for text in texts}
    exact = {*known}
    spelled = {name.lower(): name for name in known} if are_booleans(known) else {}
    return {text: text if text in exact else spelled.get(text.lower(), text) for text in texts}
