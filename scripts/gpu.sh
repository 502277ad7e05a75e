#!/usr/bin/env bash
# Tests and a short benchmark on a machine with an NVIDIA GPU and PyTorch. Usage: scripts/gpu.sh OUT [WHEELS]
# WHEELS is a folder of wheels to install from, for a machine without a network. Full output goes to OUT.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$1 wheels=${2:-}
export PYTHONUNBUFFERED=1
if [ -n "$wheels" ]; then
    site=$(mktemp -d)
    python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" "$wheels"/*.whl
    export PYTHONPATH=$site
    python3 -m pip install -q --no-index --no-deps --no-build-isolation -e . || exit 1
fi
python3 -m pytest -p no:cacheprovider tests/gpu 2>&1 | tee "$out/tests_gpu.log" | tail -n 5
trace=azure-2023-conv-busy
python3 -m harness.cli.app traces info "$trace" >/dev/null 2>&1 || trace=builtin
python3 -m harness.cli.app online --engines roseinfer --model random:gpt2 --device cuda --trace "$trace" \
    --fit clip --max-output-len 128 --n 200 --scales 0.4,0.8,1.6 --out "$out/runs" 2>&1 | tee "$out/online.log" | tail -n 45
python3 -m harness.cli.app offline --ignore-eos --engines roseinfer --model random:gpt2 --device cuda \
    --out "$out/runs" 2>&1 | tee "$out/offline.log" | tail -n 12
(cd "$out/runs" && tar czf ../runs.tar.gz .) && rm -rf "$out/runs"
