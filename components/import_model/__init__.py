"""The step `import_model`: copies a language model into an object store."""
