#!/usr/bin/env bash
# Tests and benchmarks on a machine with an NVIDIA GPU and PyTorch.
# Usage: [PHASES="tests sanitize kernels steps online clients cluster loads search offline profile published"] \
#            scripts/gpu.sh OUT [WHEELS [BUNDLES]]
# WHEELS is a folder of wheels to install from, for a machine without a network; BUNDLES holds what `bench engines
# bundle` made, a folder an engine. SCALES, ENGINES and N as in the Makefile, MODEL and DTYPE (random:gpt2, fp16)
# what is served, CLIENTS the requests in flight of the closed loops ("1,64,256"), INPUT_LEN and OUTPUT_LEN (256, 64)
# their tokens, N and ROUNDS (100, 30) how many requests at least, in all and for each in flight; REPEATS how often all
# is measured. OPTIONS are more options of `bench online`, `search` and `offline` ("--max-model-len 4096").
# Phases: `cluster` measures ENGINES once on the first GPU and once on all GPUs side by side, each a node of a Ray
# cluster (needs ray[client] and Python's jsonschema), `loads` the first engine on one node, with the load of all others;
# `steps` says which kernels the steps of a Llama take (MODEL, random:qwen3-0.6b) and how each does by itself;
# `search` finds the most requests in flight (1,024 tokens in, 128 out) within SLO, in SEARCH_S (600) seconds at most; `published`, only where it
# is named, measures PUBLISHED (one-gpu-qwen3-8b) with OPTIONS, as scripts/published.py says: as many at a time as there
# are GPUs for, and SIDES (1) repeats of an online run at a time. `profile` profiles the
# run that `online` left in OUT, at its first scale and without variants of engines; `sanitize` serves GPT-2, that Llama,
# also in fp8 and on two GPUs, and a small Qwen3.5, tests kernels of products and experts, and needs compute-sanitizer, from the CUDA toolkit or nvidia-cuda-sanitizer-api 13.5 (13.0
# lacks a part). Full output and the runs go to OUT.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$1 wheels=${2:-} bundles=${3:-}
all="tests sanitize kernels steps online clients cluster loads search offline profile published"
phases=${PHASES:-${all% published}}
gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
scales=${SCALES:-0.4,0.8,1.6} engines=${ENGINES:-roseinfer,vllm,sglang}
clients=${CLIENTS:-1,64,256} repeats=${REPEATS:-1}
llama=${MODEL:-random:qwen3-0.6b}
plain=$(tr , '\n' <<<"$engines" | grep -v @ | paste -sd ,)
own_kernels='regex=^(_[a-y]|attention|mlp|paged_decode|gqa_decode|stream|experts|draw|collective)'
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
bench="python3 -m harness.cli.app"
if [ -n "$wheels" ]; then
    export PYTHONPATH=${TMPDIR:-/tmp}/rosebench-site
    python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$PYTHONPATH" "$wheels"/*.whl
    python3 -m pip install -q --no-index --no-deps --no-build-isolation -e . || exit 1
fi
if [ -n "$bundles" ]; then
    for bundle in "$bundles"/*/; do
        $bench engines unpack "$bundle" --python "$(command -v python3)" >"$out/unpack-$(basename "$bundle").log" 2>&1 &
    done
    wait
fi
trace=azure-2023-conv-busy
$bench traces info "$trace" >/dev/null 2>&1 || trace=builtin
OPTIONS=${OPTIONS:-}
read -ra options <<<"$OPTIONS"
served=(--model "${MODEL:-random:gpt2}" --device cuda --dtype "${DTYPE:-fp16}" --out "$out/runs" "${options[@]}")
common=("${served[@]}" --repeats "$repeats")
logged() { # NAME LINES COMMAND…: all output to OUT/NAME.log, the last LINES shown
    "${@:3}" 2>&1 | tee "$out/$1.log" | tail -n "$2"
}
run_of() { dirname "$(tail -n 1 "$out/$1.log")"; } # NAME: the run that NAME.log is of; its last line names the report
for phase in $phases; do
    [[ " $all " == *" $phase "* ]] || { echo "no phase $phase: $all" >&2; exit 2; }
done
for phase in $phases; do
    case $phase in
    tests)
        logged tests_gpu 5 python3 -m pytest -q -p no:cacheprovider --durations 8 \
            tests/gpu tests/roseinfer/kernels/triton \
            "tests/roseinfer/server/process/test_serve.py::test_a_rank_lost["{cuda-killed,cuda-hung}"]"
        ;;
    sanitize)
        memcheck=(compute-sanitizer --tool memcheck --kernel-name "$own_kernels" --target-processes all)
        few=("${memcheck[@]}" python3 -m benchmarks.serve_a_few)
        fp8=(--option quantization=fp8 --option kv_cache_dtype=fp8)
        two=(--ranks 2 --option rank_timeout_s=600)
        logged memcheck 5 "${few[@]}"
        logged memcheck_llama 5 "${few[@]}" "$llama"
        logged memcheck_fp8 5 "${few[@]}" "$llama" "${fp8[@]}"
        logged memcheck_hybrid 5 "${few[@]}" random:qwen3.5-tiny
        logged memcheck_experts 5 "${memcheck[@]}" python3 -m pytest -q -p no:cacheprovider tests/gpu/test_experts.py -k 32-3
        logged memcheck_products 5 "${memcheck[@]}" python3 -m pytest -q -p no:cacheprovider tests/gpu/test_llama_kernels.py -k products
        if [ "$gpus" -gt 1 ]; then
            logged memcheck_ranks 5 "${few[@]}" "$llama" "${two[@]}"
            logged memcheck_fp8_ranks 5 "${few[@]}" "$llama" "${fp8[@]}" "${two[@]}"
        fi
        ;;
    kernels) logged kernels 50 python3 -m benchmarks.gpu_kernels ;;
    steps)
        logged parts 60 python3 -m benchmarks.llama parts "$llama"
        logged steps 70 python3 -m benchmarks.llama kernels "$llama" --prompts "1x${INPUT_LEN:-256}" "8x${INPUT_LEN:-256}" \
            --decode "1x${INPUT_LEN:-256}" "64x${INPUT_LEN:-256}" --loop 64 --input-len "${INPUT_LEN:-256}" \
            --output-len "${OUTPUT_LEN:-64}"
        ;;
    online)
        logged online 70 $bench online --engines "$engines" "${common[@]}" --trace "$trace" --fit clip \
            --max-output-len 128 --n "${N:-200}" --scales "$scales"
        ;;
    clients)
        logged clients 40 $bench online --engines "$engines" "${common[@]}" --clients 6 \
            --concurrency "$clients" --input-len "${INPUT_LEN:-256}" --output-len "${OUTPUT_LEN:-64}" \
            --n "${N:-100}" --rounds "${ROUNDS:-30}"
        ;;
    cluster | loads)
        pairs=$((gpus > 2 ? gpus : 2))
        nodes=(python3 -m scripts.ray_nodes --out "$out" --pairs "$pairs")
        closed=("${served[@]}" --concurrency "$clients" --input-len "${INPUT_LEN:-256}" --output-len "${OUTPUT_LEN:-64}"
            --n "${N:-100}" --rounds "${ROUNDS:-30}")
        if [ "$phase" = loads ]; then
            logged loads 40 "${nodes[@]}" $bench online --cluster auto --engines "${engines%%,*}" "${closed[@]}" --repeats "$repeats"
        else
            repeated=(--engines "$engines" "${closed[@]}" --repeats $((repeats > 1 ? repeats * pairs : 2 * pairs)))
            CUDA_VISIBLE_DEVICES=0 logged cluster_alone 40 $bench online "${repeated[@]}"
            logged cluster_sides 50 "${nodes[@]}" $bench online --cluster auto --side-by-side "$pairs" "${repeated[@]}"
            logged cluster_compare 40 $bench compare "$(run_of cluster_alone)" "$(run_of cluster_sides)"
        fi
        ;;
    search)
        logged search 40 $bench search --engines "$engines" "${served[@]}" --by concurrency --max-seconds "${SEARCH_S:-600}" \
            --slo "${SLO:-ttft_p99<=500ms,tpot_p99<=30ms}" --input-len "${INPUT_LEN:-1024}" \
            --output-len "${OUTPUT_LEN:-128}" --settle 3 --min-duration 6 --cells 8
        ;;
    published)
        read -ra names <<<"${PUBLISHED:-one-gpu-qwen3-8b}"
        logged published 400 python3 -m scripts.published --out "$out" --sides "${SIDES:-1}" "${names[@]}" -- "${options[@]}"
        ;;
    offline) logged offline 14 $bench offline --ignore-eos --engines "$plain" "${common[@]}" ;;
    profile)
        logged profile 60 $bench profile "$(run_of online)" --tool both --engines "$plain" --scale "${scales%%,*}"
        ;;
    esac
done
