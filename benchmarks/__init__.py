"""What measures the engine and the harness: README.md has the list. Run from the checkout, as modules."""
