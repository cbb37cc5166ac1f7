"""Exported versions of models: their numbers, aliases, addresses, claims and deletion."""
