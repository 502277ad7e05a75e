"""What every test shares."""

import importlib.util
import os
import signal
from pathlib import Path

from hypothesis import HealthCheck, settings

# A job that a script starts in the background ignores SIGINT and hands that down to all that it starts; tests
# send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: A loaded machine is no fault of the code. Under CI the same examples are tried each time, elsewhere new
#: ones.
settings.register_profile(
    "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("patient")

# Without a GPU, kernels are tested in Triton's interpreter, which has to be on when Triton is imported; the
# processes that tests start are not to inherit it.
if importlib.util.find_spec("triton") and not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
    from triton import knobs

    del os.environ["TRITON_INTERPRET"]
    knobs.runtime.interpret = True
