"""What is counted and timed, and how `/metrics` shows it."""
