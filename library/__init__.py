"""Package this library for steps and replicas: its files, their hash, and archives.

The modules of this package import only the standard library.
"""

VERSION = "0.1.0"
"""Version of the library. pyproject.toml reads it."""
