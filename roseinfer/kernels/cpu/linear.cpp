// GEMM of bfloat16 rows and weights with a fused epilogue (CPU). It is batch-invariant: a row's result does not depend
// on the other rows.
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "products.h"

#ifdef __AVX512BW__
namespace {

struct Product {
    const input* x;
    const bf16 *weight, *bias, *residual;  // bias is padded to whole vectors; bias and residual may be null
    bf16* out;
    int64_t rows, inputs, outputs;
    bool gelu;
};

inline vec gelu(vec x) {  // the tanh form
    return x / (1 + exp(-1.5957691216f * (x + 0.044715f * x * x * x)));
}

// The epilogue of outputs `column` to `column` + 16 of a row.
inline void finish(const Product& p, vec sum, int64_t row, int64_t column) {
    const int64_t at = row * p.outputs + column, left = p.outputs - column;
    if (p.bias) sum += load(p.bias + column);
    if (p.gelu) sum = gelu(sum);
    if (left >= W) {
        if (p.residual) sum += load(p.residual + at);
        return store(p.out + at, sum);
    }
    bf16 part[W] = {};
    if (p.residual) {
        std::memcpy(part, p.residual + at, left * sizeof(bf16));
        sum += load(part);
    }
    store(part, sum);
    std::memcpy(p.out + at, part, left * sizeof(bf16));
}

void multiply(const Product& p) {
    const int64_t panels = (p.outputs + PANEL - 1) / PANEL;
    const int64_t per_thread = 2 * omp_get_max_threads() / panels;  // with few panels, rows are split among threads too
    const int64_t cached = (1 << 20) / sizeof(bf16) / p.inputs / ROWS * ROWS;  // rows that stay in the L2 cache
    const int64_t block = std::clamp<int64_t>(cached, BLOCK / 2, BLOCK);
    const bf16* end = p.weight + up(p.outputs, W) * p.inputs;
#pragma omp parallel
    {
        Tiles tiles;
        for (int64_t first = 0; first < p.rows; first += block) {
            const int64_t count = std::min(p.rows - first, block), passes = (count + ROWS - 1) / ROWS;
            const int64_t chunks = std::min(passes, std::max<int64_t>(per_thread, 1));
#pragma omp for schedule(static) nowait
            for (int64_t job = 0; job < panels * chunks; ++job) {
                const int64_t column = job / chunks * PANEL, chunk = job % chunks;
                const int64_t vectors = std::min<int64_t>(up(p.outputs - column, W) / W, VECTORS);
                const int64_t row = first + count * chunk / chunks, rows = first + count * (chunk + 1) / chunks - row;
                product(tiles, rows, vectors, p.weight + column * p.inputs, p.x + row * p.inputs, p.inputs, p.inputs,
                        end, [&](int64_t r, int v, vec sum) { finish(p, sum, row + r, column + v * W); });
            }
        }
    }
}

}  // namespace

extern "C" void linear_bf16(const void* weight, const void* bias, const void* x, const void* residual, void* out,
                            int64_t rows, int64_t inputs, int64_t outputs, int32_t gelu) {
#ifdef __AVX512BF16__
    const bf16* from = static_cast<const bf16*>(x);
#else
    const std::unique_ptr<float[]> widened(new float[rows * inputs]);
    const float* from = widened.get();
#pragma omp parallel for schedule(static) if (rows >= 64)
    for (int64_t row = 0; row < rows; ++row) {
        widen(static_cast<const bf16*>(x) + row * inputs, &widened[row * inputs], inputs);
    }
#endif
    multiply({from, static_cast<const bf16*>(weight), static_cast<const bf16*>(bias),
              static_cast<const bf16*>(residual), static_cast<bf16*>(out), rows, inputs, outputs, gelu != 0});
}

// Outputs of a panel of packed weights.
extern "C" int32_t panel_outputs() { return PANEL; }
#endif

// Whether this processor has the instructions that these kernels need, and this process may use them.
extern "C" int32_t has_bf16_products() {
#ifdef __AMX_BF16__
    constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM: Linux, Documentation/arch/x86/xstate.rst
    return !syscall(SYS_arch_prctl, REQUEST, TILE_DATA);
#elif defined(__AVX512BW__)
    return 1;
#else
    return 0;
#endif
}
