// Products of bfloat16 rows and weights, for processors with a bfloat16 dot product (CPU).
//
// A weight [outputs, inputs] lies in panels of 48 outputs, the last one narrower; in a panel, pairs of inputs
// follow each other, each for all outputs of the panel. So a panel is one stream, read once for up to nine rows
// that share it in registers. Sums are float32, and a row's result does not depend on the rows beside it.
#include <cstdint>

#ifdef __AVX512BF16__
#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cstring>

#include "vec.h"

namespace {

constexpr int VECTORS = 3;  // of 16 outputs, in a panel
constexpr int ROWS = 9;     // with three vectors each: 27 of the 32 registers
constexpr int64_t PANEL = VECTORS * W;

struct Product {
    const bf16 *weight, *bias, *x, *residual;  // bias: whole vectors; bias and residual may be null
    bf16* out;
    int64_t rows, inputs, outputs;
    bool gelu;
};

inline vec gelu(vec x) {  // the tanh form
    return x / (1 + exp(-1.5957691216f * (x + 0.044715f * x * x * x)));
}

// What follows the sum of outputs `column` to `column` + 16 of a row.
inline void finish(const Product& p, vec sum, int64_t row, int64_t column) {
    const int64_t at = row * p.outputs + column;
    const size_t bytes = std::min<int64_t>(W, p.outputs - column) * sizeof(bf16);
    if (p.bias) sum += load(p.bias + column);
    if (p.gelu) sum = gelu(sum);
    bf16 part[W] = {};
    if (p.residual) {
        std::memcpy(part, p.residual + at, bytes);
        sum += load(part);
    }
    store(part, sum);
    std::memcpy(p.out + at, part, bytes);
}

template <int R, int V>
void tile(const Product& p, int64_t row, int64_t column) {
    const bf16* weight = p.weight + column * p.inputs;
    const bf16* x = p.x + row * p.inputs;
    __m512 sum[R][V] = {};
    for (int64_t i = 0; i < p.inputs; i += 2) {
        __m512bh pairs[V];
        for (int v = 0; v < V; ++v) {
            pairs[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(weight + i * V * W + 2 * v * W));
        }
        for (int r = 0; r < R; ++r) {
            int32_t pair;
            std::memcpy(&pair, x + r * p.inputs + i, sizeof pair);
            const __m512bh both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
            for (int v = 0; v < V; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], pairs[v], both);
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) {
            vec total;
            std::memcpy(&total, &sum[r][v], sizeof total);
            finish(p, total, row + r, column + v * W);
        }
    }
}

template <int R, int V>
void rows_of_tile(const Product& p, int64_t row, int64_t rows, int64_t column) {
    if constexpr (R > 0) {
        if (rows == R) return tile<R, V>(p, row, column);
        rows_of_tile<R - 1, V>(p, row, rows, column);
    }
}

void panel(const Product& p, int64_t row, int64_t rows, int64_t column) {
    const int64_t left = p.outputs - column;
    if (left > 2 * W) return rows_of_tile<ROWS, 3>(p, row, rows, column);
    if (left > W) return rows_of_tile<ROWS, 2>(p, row, rows, column);
    rows_of_tile<ROWS, 1>(p, row, rows, column);
}

void multiply(const Product& p) {
    const int64_t panels = (p.outputs + PANEL - 1) / PANEL, passes = (p.rows + ROWS - 1) / ROWS;
    const int64_t per_thread = 2 * omp_get_max_threads() / panels;  // of few panels, rows are dealt out too
    const int64_t chunks = std::min(passes, std::max<int64_t>(per_thread, 1));
#pragma omp parallel for schedule(static)
    for (int64_t job = 0; job < panels * chunks; ++job) {
        const int64_t chunk = job % chunks;
        for (int64_t pass = passes * chunk / chunks; pass < passes * (chunk + 1) / chunks; ++pass) {
            const int64_t row = p.rows * pass / passes;
            panel(p, row, p.rows * (pass + 1) / passes - row, job / chunks * PANEL);
        }
    }
}

}  // namespace

extern "C" void linear_bf16(const void* weight, const void* bias, const void* x, const void* residual, void* out,
                            int64_t rows, int64_t inputs, int64_t outputs, int32_t gelu) {
    multiply({static_cast<const bf16*>(weight), static_cast<const bf16*>(bias), static_cast<const bf16*>(x),
              static_cast<const bf16*>(residual), static_cast<bf16*>(out), rows, inputs, outputs, gelu != 0});
}
#endif

// Whether `linear_bf16` exists.
extern "C" int32_t has_linear_bf16() {
#ifdef __AVX512BF16__
    return 1;
#else
    return 0;
#endif
}
