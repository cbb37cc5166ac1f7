"""The step that turns a source of rows or images into sharded train, validation and test datasets."""
