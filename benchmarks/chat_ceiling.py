"""Compares what one client process sustains on streams of chats and of completions.

    python -m benchmarks.chat_ceiling [--rounds 3] [--seconds 1.5]

Streams of the mock server, a token each 8 ms: completions with token ids, chats as text with a role chunk
first, and chats whose first half is reasoning. Kinds take turns; prints chunks a second (with those a CPU
second of the client) and the median of each kind over completions. Ends with code 1 if one is 20 % lower.
"""

from __future__ import annotations

import argparse
import sys
from statistics import median

from harness.calibration.ceiling import search
from harness.calibration.rate_trials import Trial, try_chunks
from harness.engines.cores import physical_cores, split

KINDS: dict[str, dict[str, object]] = {
    "completions": {},
    "chat": {"chat": True, "token_ids": False},
    "chat, half of it reasoning": {"chat": True, "token_ids": False, "reasoning": 100},
}
LEAST = 0.8
START = 20_000.0


def main() -> int:
    """Measure, print a line a round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="length of each trial")
    options = parser.parse_args()
    cpus = split(physical_cores())
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(options.rounds):
        for kind, behaviour in KINDS.items():

            def attempt(rate: float, behaviour: dict[str, object] = behaviour) -> Trial:
                return try_chunks(rate, options.seconds, 1, cpus, behaviour)

            trial, limit = search(attempt, START)
            found[kind].append(trial.reached)
            spent = trial.reached / trial.busy
            print(
                f"{kind}: {trial.reached:,.0f} chunks/s, {spent:,.0f} a CPU second, limit: {limit}",
                flush=True,
            )
    whole = median(found["completions"])
    shares = {kind: median(rates) / whole for kind, rates in found.items()}
    for kind, share in shares.items():
        print(f"{kind}: median {median(found[kind]):,.0f} chunks/s, {share:.2f} of completions")
    return int(min(shares.values()) < LEAST)


if __name__ == "__main__":
    sys.exit(main())
