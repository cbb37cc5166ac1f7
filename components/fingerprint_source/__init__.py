"""The step `fingerprint_source`: a short text that changes with the files of a source."""
