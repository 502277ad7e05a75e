"""A batch counts only when every prompt got the tokens that were asked for."""

from __future__ import annotations

import pytest

from harness.engines.registry import get_engine_variant
from harness.errors import EngineError
from harness.runs.batch.measured import Measured, result
from harness.schema.engine_ref import EngineRef
from harness.schema.setting_types import Uniform
from harness.schema.settings import OfflineSettings
from harness.workload import closed_loop
from harness.workload.content import SyntheticContent

ENGINE_VARIANT = get_engine_variant(EngineRef(name="vllm"))
SETTINGS = OfflineSettings(num_prompts=4, input_len=10, output_len=5)
ASKED = closed_loop(4, 10, 5, 100, 0)


def test_rates():
    row = result(Measured(0.5, [5, 5, 5, 5]), ENGINE_VARIANT, 1, SETTINGS, ASKED)
    assert (row.prompt_tokens, row.completion_tokens, row.repeat) == (40, 20, 1)
    assert (row.req_per_s, row.output_tok_per_s, row.total_tok_per_s) == (8, 40, 120)


@pytest.mark.parametrize("counts", [[5, 5, 5], [5, 5, 5, 4], [5, 6, 5, 5], []])
def test_wrong_counts_are_errors(counts):
    with pytest.raises(EngineError):
        result(Measured(0.5, counts), ENGINE_VARIANT, 0, SETTINGS, ASKED)


def test_several_batches_have_one_rate():
    once = Measured(0.5, [5, 5, 5, 5])
    row = result(once + Measured(1.5, [5, 5, 5, 5]), ENGINE_VARIANT, 0, SETTINGS, ASKED)
    assert (row.batches, row.num_prompts, row.completion_tokens, row.total_s) == (2, 4, 20, 1.0)
    assert (row.req_per_s, row.output_tok_per_s) == (4, 20)
    with pytest.raises(EngineError, match="answered 4 of 8 prompts"):
        result(Measured(0.5, [5] * 4, 2), ENGINE_VARIANT, 0, SETTINGS, ASKED)


def test_fewer_tokens_are_right_where_eos_counts():
    free = SETTINGS.model_copy(update={"ignore_eos": False})
    assert result(Measured(0.5, [5, 1, 3, 5]), ENGINE_VARIANT, 0, free, ASKED).completion_tokens == 14
    with pytest.raises(EngineError):
        result(Measured(0.5, [5, 0, 3, 5]), ENGINE_VARIANT, 0, free, ASKED)


def test_every_answer_has_its_own_length():
    asked = SyntheticContent(Uniform(least=3, most=9), Uniform(least=2, most=7), 100).take(4, 1, 1)
    lengths = [request.output_tokens for request in asked]
    row = result(Measured(0.5, lengths), ENGINE_VARIANT, 0, SETTINGS, asked)
    assert row.completion_tokens == sum(lengths)
    assert row.prompt_tokens == sum(len(request.prompt) for request in asked)
    with pytest.raises(EngineError, match=f"{lengths[0] + 1} instead of {lengths[0]}"):
        result(Measured(0.5, [lengths[0] + 1, *lengths[1:]]), ENGINE_VARIANT, 0, SETTINGS, asked)
