"""Names of single tokens in logprobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class TokenName(NamedTuple):
    """`text` is the token's, or a name for it: ASCII with `\\xNN` for all other bytes where the token is not
    `whole` characters. `bytes` is None for a token without a text, such as a special one."""

    text: str
    bytes: list[int] | None
    whole: bool


class TokenNames(dict[int, TokenName]):
    """The name of every token id, computed when first needed; `token_id:N` without a text or special name."""

    def __init__(self, token_bytes: Sequence[bytes], special: Mapping[int, str]) -> None:
        super().__init__()
        self._bytes, self._special = token_bytes, special

    def __missing__(self, token: int) -> TokenName:
        data = self._bytes[token] if token < len(self._bytes) else b""
        if not data:
            name = TokenName(self._special.get(token, f"token_id:{token}"), None, whole=True)
        else:
            try:
                name = TokenName(data.decode(), [*data], whole=True)
            except UnicodeDecodeError:
                name = TokenName(data.decode("ascii", "backslashreplace"), [*data], whole=False)
        self[token] = name
        return name
