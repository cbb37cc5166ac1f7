"""Durations as text. Pure."""


def format_seconds(seconds: float) -> str:
    """Return a duration as text, such as "1.5 s", "12 s", "3 min 20 s" or "2 h 5 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 ", " ")
    minutes, remaining_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{count} {unit}" for count, unit in ((hours, "h"), (minutes, "min"), (remaining_seconds, "s")) if count]
    return " ".join(parts[:2])
