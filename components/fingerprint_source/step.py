"""Runs the step `fingerprint_source`."""

from kfp_distributed.components.external_services.source_address import DIGITS
from kfp_distributed.components.fingerprint_source.fingerprint import fingerprint
from kfp_distributed.components.fingerprint_source.states import file_states
from kfp_distributed.library.address_secrets import without_secrets
from kfp_distributed.storage.kubeflow.placeholders import refuse_placeholders


def run_step(*, source: str) -> str:
    """Return the fingerprint of a source. The parameter is that of the component.

    Raises:
        SystemExit: The source does not exist or cannot be read. The message is the last line of the step's log, because
            KFP shows an error nowhere else.
    """
    try:
        refuse_placeholders({"source": source})
        # The library has these data. If they change, so does the program of prepare_data, which the cache compares too.
        value = DIGITS if source == DIGITS else fingerprint(file_states(source))
    except (ValueError, OSError) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None
    print(f"fingerprint of {without_secrets(source)}: {value}", flush=True)
    return value
