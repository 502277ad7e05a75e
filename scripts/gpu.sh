#!/usr/bin/env bash
# Tests and benchmarks on a machine with an NVIDIA GPU and PyTorch.
# Usage: scripts/gpu.sh OUT [WHEELS [BUNDLES]]
# WHEELS is a folder of wheels to install from, for a machine without a network; BUNDLES holds what `bench engines
# bundle` made, a folder an engine. SCALES and ENGINES as in the Makefile. Full output goes to OUT.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$1 wheels=${2:-} bundles=${3:-}
scales=${SCALES:-0.4,0.8,1.6} engines=${ENGINES:-roseinfer,vllm,sglang}
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
bench="python3 -m harness.cli.app"
if [ -n "$wheels" ]; then
    site=$(mktemp -d)
    python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" "$wheels"/*.whl
    export PYTHONPATH=$site
    python3 -m pip install -q --no-index --no-deps --no-build-isolation -e . || exit 1
fi
if [ -n "$bundles" ]; then
    for bundle in "$bundles"/*/; do
        $bench engines unpack "$bundle" --python "$(command -v python3)" >"$out/unpack-$(basename "$bundle").log" 2>&1 &
    done
fi
python3 -m pytest -p no:cacheprovider tests/gpu 2>&1 | tee "$out/tests_gpu.log" | tail -n 5
wait
trace=azure-2023-conv-busy
$bench traces info "$trace" >/dev/null 2>&1 || trace=builtin
common=(--model random:gpt2 --device cuda --dtype fp16 --out "$out/runs")
$bench online --engines "$engines" "${common[@]}" --trace "$trace" --fit clip --max-output-len 128 --n 200 \
    --scales "$scales" 2>&1 | tee "$out/online.log" | tail -n 60
for clients in 1 64 256; do
    $bench online --engines roseinfer "${common[@]}" --concurrency $clients --input-len 256 --output-len 64 \
        --n $((clients * 10 > 100 ? clients * 10 : 100)) 2>&1 | tee "$out/closed_$clients.log" | tail -n 24
done
$bench offline --ignore-eos --engines roseinfer "${common[@]}" 2>&1 | tee "$out/offline.log" | tail -n 12
(cd "$out/runs" && tar czf ../runs.tar.gz .) && rm -rf "$out/runs"
