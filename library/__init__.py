"""The library as data: its files, their hash, and the archives by which it reaches steps and replicas.

Every module here needs the standard library alone.
"""

VERSION = "0.1.0"
"""Version of the library; pyproject.toml reads it from here."""
