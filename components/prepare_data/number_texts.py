"""Regular expressions of numbers in texts."""

FINITE = r"[-+]?(\d+\.?|\.\d)\d*([eE][-+]?\d+)?"
"""A number with digits, such as "-1", ".5" or "1e3"."""
NUMBER = rf"({FINITE}|[-+]?(?i:inf(inity)?))"
"""A number or infinity."""
