"""Measurements of the engine and the harness; README.md lists them. Run from the checkout, as modules."""
