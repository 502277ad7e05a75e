"""What a comparison comes to."""

from __future__ import annotations

from typing import Literal

Verdict = Literal["better", "worse", "no difference", "not enough data"]
