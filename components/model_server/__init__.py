"""Answers requests for predictions over HTTP, as TensorFlow Serving does."""
