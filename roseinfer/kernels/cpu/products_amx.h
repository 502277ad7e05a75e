// The inner kernel of GEMMs by AMX's tiles: 16 rows by 32 inputs, times 32 inputs by 16 outputs.
#pragma once

#include "vec.h"

namespace {

using input = bf16;

// Two tiles of rows and two of outputs make four tiles of sums. All eight tile registers are used, and each tile that is
// loaded is used twice.
constexpr int VECTORS = 2;
constexpr int ROWS = 32;
constexpr int64_t PANEL = VECTORS * W;
constexpr int64_t DEEP = 32;  // inputs of a tile

// The shapes of this thread's tile registers, which others than these kernels may set too.
class Tiles {
  public:
    Tiles() = default;
    Tiles(const Tiles&) = delete;
    ~Tiles() {
        if (rows) _tile_release();
    }

    void shape(int64_t wanted) {
        if (wanted == rows) return;
        rows = wanted;
        const int64_t first = std::min<int64_t>(rows, 16), second = std::max<int64_t>(rows - 16, 1);
        struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {};  // of a row
            uint8_t rows[16] = {};
        } config;
        for (int tile = 0; tile < 8; ++tile) config.bytes[tile] = 64;
        const int64_t each[8] = {first, first, second, second, 16, 16, first, second};
        for (int tile = 0; tile < 8; ++tile) config.rows[tile] = each[tile];
        asm volatile("" : : "r"(&config) : "memory");
        _tile_loadconfig(&config);
    }

  private:
    int64_t rows = 0;
};

// Rows are split in passes of equal height, of which the last may begin within the one before: shaping tiles again takes
// as long as a pass. With more rows than LONG, they pass over CHUNK inputs at a time, so that this part of a panel stays
// in the L1 cache.
constexpr int64_t LONG = 2 * ROWS, CHUNK = 192;

// Cache lines to prefetch: `count` with each DEEP inputs, from `next` on.
struct Ahead {
    const char* next = nullptr;
    int64_t count = 0;
};

// Adds the products of `inputs` inputs, a multiple of DEEP, to `sums`; `begins`: there are none yet.
template <bool SECOND, int V>
void multiply_tiles(const bf16* panel, const bf16* x, int64_t stride, int64_t inputs, bool begins, const Ahead& ahead,
                    float (*sums)[PANEL]) {
    constexpr int64_t BYTES = V * W * 2 * sizeof(bf16);  // of a pair of inputs
    const char *weights = reinterpret_cast<const char*>(panel), *next = ahead.next;
    asm volatile("" : : "r"(panel), "r"(x), "r"(sums) : "memory");  // that tiles load from there, compilers do not know
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (__builtin_expect(!begins, 0)) {
        _tile_loadd(0, &sums[0][0], PANEL * sizeof(float));
        if constexpr (V > 1) _tile_loadd(1, &sums[0][W], PANEL * sizeof(float));
        if constexpr (SECOND) {
            _tile_loadd(2, &sums[16][0], PANEL * sizeof(float));
            if constexpr (V > 1) _tile_loadd(3, &sums[16][W], PANEL * sizeof(float));
        }
    }
    for (int64_t i = 0; i + DEEP <= inputs; i += DEEP, weights += DEEP / 2 * BYTES, x += DEEP) {
        if constexpr (SECOND) {
            for (int64_t line = 0; line < ahead.count; ++line, next += 64) _mm_prefetch(next, _MM_HINT_T1);
        }
        _tile_loadd(4, weights, BYTES);
        _tile_loadd(6, x, stride * sizeof(bf16));
        _tile_dpbf16ps(0, 6, 4);
        if constexpr (V > 1) {
            _tile_loadd(5, weights + BYTES / 2, BYTES);
            _tile_dpbf16ps(1, 6, 5);
        }
        if constexpr (SECOND) {
            _tile_loadd(7, x + 16 * stride, stride * sizeof(bf16));
            _tile_dpbf16ps(2, 7, 4);
            if constexpr (V > 1) _tile_dpbf16ps(3, 7, 5);
        }
    }
    _tile_stored(0, &sums[0][0], PANEL * sizeof(float));
    if constexpr (V > 1) _tile_stored(1, &sums[0][W], PANEL * sizeof(float));
    if constexpr (SECOND) {
        _tile_stored(2, &sums[16][0], PANEL * sizeof(float));
        if constexpr (V > 1) _tile_stored(3, &sums[16][W], PANEL * sizeof(float));
    }
}

// Calls finish for row `r` and its `sums`, to which the inputs from `from` on are added. Inlined: a call takes 3 % of the
// time of a product of one row.
template <typename Finish>
[[gnu::always_inline]] inline void finish_row(int64_t r, int64_t vectors, const bf16* panel, const bf16* x, int64_t from,
                                              int64_t inputs, const float* sums, const Finish& finish) {
    for (int v = 0; v < vectors; ++v) {
        __m512 sum = _mm512_load_ps(sums + v * W);
        for (int64_t i = from; i < inputs; i += 2) {
            int32_t pair;
            std::memcpy(&pair, x + i, sizeof pair);
            const __m512i weights = _mm512_loadu_si512(panel + (i * vectors + 2 * v) * W);
            sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(weights),
                                   reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)));
        }
        finish(r, v, reinterpret_cast<vec>(sum));
    }
}

template <typename Finish>
void product(Tiles& tiles, int64_t rows, int64_t vectors, const bf16* panel, const bf16* x, int64_t stride,
             int64_t inputs, const bf16* end, const Finish& finish) {
    alignas(64) float sums[BLOCK][PANEL];
    const int64_t whole = inputs / DEEP * DEEP;
    if (rows <= 16) {  // the loops below would take 4 % of the time of one row
        tiles.shape(rows);
        const auto multiply = vectors > 1 ? multiply_tiles<false, 2> : multiply_tiles<false, 1>;
        multiply(panel, x, stride, whole, true, {}, sums);
        for (int64_t r = 0; r < rows; ++r) {
            finish_row(r, vectors, panel, x + r * stride, whole, inputs, sums[r], finish);
        }
        return;
    }
    const int64_t passes = (rows + ROWS - 1) / ROWS, height = (rows + passes - 1) / passes, width = vectors * W;
    const int64_t most = rows > LONG ? CHUNK : std::max(whole, DEEP);
    const auto begin = [&](int64_t pass) { return std::min(pass * height, rows - height); };
    const auto multiply = vectors > 1 ? multiply_tiles<true, 2> : multiply_tiles<true, 1>;
    tiles.shape(height);
    for (int64_t i = 0; i == 0 || i < whole; i += most) {
        const int64_t count = std::min(most, whole - i);
        const bool streams = panel + (i + 2 * count) * width <= end;
        const int64_t lines = streams ? (vectors * 16 + passes - 1) / passes : 0;
        const char* next = reinterpret_cast<const char*>(panel + (i + count) * width);
        for (int64_t pass = 0; pass < passes; ++pass, next += count / DEEP * lines * 64) {
            const bf16* from = x + begin(pass) * stride + i;
            multiply(panel + i * width, from, stride, count, i == 0, {next, lines}, sums + pass * ROWS);
        }
    }
    for (int64_t pass = 0, r = 0; pass < passes; ++pass) {
        for (; r < begin(pass) + height; ++r) {
            finish_row(r, vectors, panel, x + r * stride, whole, inputs, sums[pass * ROWS + r - begin(pass)], finish);
        }
    }
}

}  // namespace
