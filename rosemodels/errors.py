"""Errors of this package."""


class ModelError(Exception):
    """A named model that cannot be had. `hint` says what would help."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
