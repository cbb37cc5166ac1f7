"""What TensorFlow prints at each start, whatever its settings, and what nobody can act on."""

STARTUP_REMARK = (
    r"WARNING: All log messages before absl::InitializeLog\(\)"
    r"|oneDNN custom operations are on"
    r"|This TensorFlow binary is optimized to use available CPU instructions"
    r"|To enable the following instructions: .* rebuild TensorFlow"
    r"|Unable to register cu\w+ factory"
    r"|computation placer already registered"
)
"""Regular expression to search for in a line. TensorFlow's libraries print most of these while they are loaded, before
TF_CPP_MIN_LOG_LEVEL counts (seen with 2.21)."""
