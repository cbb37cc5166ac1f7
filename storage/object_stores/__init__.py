"""The client of an S3 object store: requests, their errors and retries, uploads in parts, and copies by the server.

An address, keys and bytes come in, and the store of `storage.store` goes out. How requests are sent
and repeated may be changed here alone; for how long is the caller's `retry_seconds`.
"""
