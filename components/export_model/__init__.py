"""The step `export_model`: a model as a numbered version that model servers load."""
