"""The step `evaluate_language_model`: scores a language model by a job of one or more replicas."""
