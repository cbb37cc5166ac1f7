"""Lines that TensorFlow logs at each start, in spite of its settings, and that require no action."""

STARTUP_REMARK = (
    r"WARNING: All log messages before absl::InitializeLog\(\)"
    r"|oneDNN custom operations are on"
    r"|This TensorFlow binary is optimized to use available CPU instructions"
    r"|To enable the following instructions: .* rebuild TensorFlow"
    r"|Unable to register cu\w+ factory"
    r"|computation placer already registered"
)
"""Regular expression to search for in a log line. TensorFlow 2.21 logs most of these while its libraries are loaded,
before TF_CPP_MIN_LOG_LEVEL takes effect."""
