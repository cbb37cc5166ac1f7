"""Answers requests over HTTP: for predictions as TensorFlow Serving does, and for chats as OpenAI does."""
