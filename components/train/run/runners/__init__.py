"""Runners of training jobs: their protocol, and one package per runner."""
