"""The step `deploy_model`: serve an exported version with KServe."""
