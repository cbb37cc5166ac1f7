"""Reusable pipelines, and functions that run them on this machine."""
