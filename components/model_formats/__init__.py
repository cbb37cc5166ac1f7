"""Loads models of each format, and makes their inputs from rows. Steps that run a model share it."""
