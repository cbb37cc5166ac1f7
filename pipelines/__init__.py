"""Reusable pipelines, and what runs them on one machine."""
