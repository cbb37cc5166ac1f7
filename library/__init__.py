"""The library as data: its files, their hash, and the archives by which it reaches steps and replicas.

Every module here needs the standard library alone.
"""
