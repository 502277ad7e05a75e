"""Runs a module of this package as a process: `python -m roseinfer.start MODULE ARGUMENT…`.

Imports make many objects that stay. Until the module has begun, and says so by `keep_what_is_made`, nobody
looks through them for garbage, which takes an eighth of a start. Nor does the interpreter when it ends.
"""

import gc
import runpy
import sys

if __name__ == "__main__":
    gc.disable()
    del sys.argv[0]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    finally:
        gc.freeze()
