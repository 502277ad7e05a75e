"""The sentence that a log's error becomes. The logs are those of the engines named, shortened."""

import pytest

from harness.engines.process.tree import LONGEST, cause

VLLM_CORE = """(EngineCore pid=7) ERROR 11-23 08:59:06 [core.py:1100] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-23 08:59:06 [core.py:1100]     raise ValueError(
(EngineCore pid=7) ERROR 11-23 08:59:06 [core.py:1100] ValueError: no attention kernel has blocks of 24
(APIServer pid=5) Traceback (most recent call last):
(APIServer pid=5)     raise RuntimeError(
(APIServer pid=5) RuntimeError: Engine core initialization failed. See root cause above. Failed: {}
/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: 2 leaked objects
  warnings.warn('resource_tracker: There appear to be %d '
"""
VLLM_SETTINGS = """INFO 11-23 08:59:06 [model.py:2152] Using max model len 256
Traceback (most recent call last):
  File "/lib/pydantic/_internal/_dataclasses.py", line 121, in __init__
    s.__pydantic_validator__.validate_python(ArgsKwargs(args, kwargs), self_instance=s)
pydantic_core._pydantic_core.ValidationError: 2 validation errors for SchedulerConfig
max_num_seqs
  Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0, input_type=int]
    For further information visit https://errors.pydantic.dev/2.14/v/greater_than_equal
"""
ARGPARSE = """usage: server [-h] [--port PORT]
server: error: argument --port: invalid int value: 'x'
"""


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (VLLM_CORE, "ValueError: no attention kernel has blocks of 24"),
        (
            VLLM_SETTINGS,
            "pydantic_core._pydantic_core.ValidationError: 2 validation errors for SchedulerConfig "
            "max_num_seqs Input should be greater than or equal to 1",
        ),
        (ARGPARSE, "argument --port: invalid int value: 'x'"),
        (
            "loading\nroseinfer: --block-size must be at least 1\n",
            "roseinfer: --block-size must be at least 1",
        ),
        ("RuntimeError: failed. See root cause above.\nbye\n", "RuntimeError: failed. See root cause above."),
        ("terminate called after throwing\n  what():  std::bad_alloc\nAborted\n", "what(): std::bad_alloc"),
        (f"ValueError: {'x' * 5000}", f"ValueError: {'x' * (LONGEST - 13)}…"),
        ("\n\n", ""),
    ],
)
def test_the_cause_in_a_log(log: str, sentence: str) -> None:
    assert cause(log) == sentence
