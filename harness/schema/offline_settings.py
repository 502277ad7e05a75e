"""Settings of `bench offline`."""

from __future__ import annotations

from pydantic import Field

from harness.schema.common_settings import CommonSettings
from harness.schema.load_settings import Lengths


class OfflineSettings(CommonSettings):
    """`bench offline`: a fixed batch of token-id prompts through each engine's own API."""

    command = "offline"

    num_prompts: int = Field(128, ge=1, description="prompts in the batch")
    input_len: Lengths = Field(256, description="tokens of each prompt: a number, or uniform:A:B")
    output_len: Lengths = Field(64, description="tokens generated for each prompt: a number, or uniform:A:B")
