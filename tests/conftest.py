"""What every test shares."""

import importlib.util
import os
from pathlib import Path

from hypothesis import settings

#: A loaded machine is no fault of the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# Without a GPU, kernels are tested in Triton's interpreter, which has to be on when Triton is imported; the
# processes that tests start are not to inherit it.
if importlib.util.find_spec("triton") and not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
    from triton import knobs

    del os.environ["TRITON_INTERPRET"]
    knobs.runtime.interpret = True
