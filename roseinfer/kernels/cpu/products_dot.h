// The inner kernel of GEMMs by AVX512_BF16's dot product where the processor has it, else with each of a pair widened to
// float32, which is a shift or a mask.
#pragma once

#include "vec.h"

namespace {

#ifdef __AVX512BF16__
using input = bf16;
#else
using input = float;  // widened once, not for every panel
#endif

constexpr int VECTORS = 3;  // vectors of 16 outputs in a panel
constexpr int ROWS = 9;     // rows at a time; with three vectors each, 27 of the 32 registers
constexpr int64_t PANEL = VECTORS * W;
// With at least SEVERAL rows the kernel prefetches: the hardware prefetcher does not read far enough ahead then.
constexpr int SEVERAL = 4;
constexpr int64_t AHEAD = 4096;  // elements, 8 KiB

// Calls finish(row, vector, sums) for R rows, `stride` apart, and V vectors of outputs.
template <int R, int V, typename Finish>
void tile(const bf16* panel, const input* x, int64_t stride, int64_t inputs, const Finish& finish) {
    __m512 sum[R][V] = {};
    for (int64_t i = 0; i < inputs; i += 2) {
        const bf16* weights = panel + i * V * W;
        for (int v = 0; v < V; ++v) {
            if (R >= SEVERAL) __builtin_prefetch(weights + AHEAD + 2 * v * W);
        }
#ifdef __AVX512BF16__
        __m512bh pairs[V];
        for (int v = 0; v < V; ++v) pairs[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(weights + 2 * v * W));
        for (int r = 0; r < R; ++r) {
            int32_t pair;
            std::memcpy(&pair, x + r * stride + i, sizeof pair);
            const __m512bh both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
            for (int v = 0; v < V; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], pairs[v], both);
        }
#else
        for (int second = 0; second < 2; ++second) {
            __m512 one[V];
            for (int v = 0; v < V; ++v) {
                const __m512i pairs = _mm512_loadu_si512(weights + 2 * v * W);
                one[v] = _mm512_castsi512_ps(second ? _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff0000))
                                                    : _mm512_slli_epi32(pairs, 16));
            }
            for (int r = 0; r < R; ++r) {
                const __m512 all = _mm512_set1_ps(x[r * stride + i + second]);
                for (int v = 0; v < V; ++v) sum[r][v] = _mm512_fmadd_ps(one[v], all, sum[r][v]);
            }
        }
#endif
    }
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) finish(r, v, reinterpret_cast<vec>(sum[r][v]));
    }
}

template <int R, int V, typename Finish>
void rows_of(int64_t rows, const bf16* panel, const input* x, int64_t stride, int64_t inputs, const Finish& finish) {
    if constexpr (R > 0) {
        if (rows == R) return tile<R, V>(panel, x, stride, inputs, finish);
        rows_of<R - 1, V>(rows, panel, x, stride, inputs, finish);
    }
}

// What a thread keeps while it computes products: nothing.
struct Tiles {};

template <typename Finish>
void product(Tiles&, int64_t rows, int64_t vectors, const bf16* panel, const input* x, int64_t stride, int64_t inputs,
             const bf16*, const Finish& finish) {
    const int64_t passes = (rows + ROWS - 1) / ROWS;
    for (int64_t pass = 0; pass < passes; ++pass) {
        const int64_t first = rows * pass / passes, part = rows * (pass + 1) / passes - first;
        const input* from = x + first * stride;
        const auto sums = [&](int r, int v, vec sum) { finish(first + r, v, sum); };
        if (vectors == 3) {
            rows_of<ROWS, 3>(part, panel, from, stride, inputs, sums);
        } else if (vectors == 2) {
            rows_of<ROWS, 2>(part, panel, from, stride, inputs, sums);
        } else {
            rows_of<ROWS, 1>(part, panel, from, stride, inputs, sums);
        }
    }
}

}  // namespace
