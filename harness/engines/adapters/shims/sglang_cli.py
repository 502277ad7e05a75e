"""Runs the command `sglang` of the interpreter's environment, whose script a bundle does not have."""

from sglang.cli.main import main

if __name__ == "__main__":  # its own processes import this file
    main()
