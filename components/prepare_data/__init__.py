"""The step that splits rows or images into train, validation and test datasets of Parquet shards."""
