// The operators between the linear layers of a Llama layer (CPU), each in one pass over memory.
// Widths are multiples of 16; arithmetic is float32.
#include <cmath>

#include "vec.h"

namespace {

constexpr int64_t PARALLEL = 1 << 15;  // elements from which a second thread pays

inline float inverse_rms(vec squares, int width, float eps) { return 1 / std::sqrt(sum(squares) / width + eps); }

template <typename T>
void rms_norm(const T* x, const T* gain, T* out, int64_t rows, int width, float eps) {
#pragma omp parallel for if (rows * width >= PARALLEL)
    for (int64_t r = 0; r < rows; ++r) {
        const T* row = x + r * width;
        vec squares = {};
        for (int i = 0; i < width; i += W) squares += load(row + i) * load(row + i);
        const float scale = inverse_rms(squares, width, eps);
        for (int i = 0; i < width; i += W) store(out + r * width + i, load(row + i) * scale * load(gain + i));
    }
}

// RoPE in place. `gain`: of an RMS norm over each head before it, or null; `turns`: cos, then sin of each row's angles.
template <typename T>
void rotate(T* qk, const T* gain, const float* turns, int64_t rows, int64_t stride, int heads, int dim, float eps) {
    const int half = dim / 2;
#pragma omp parallel for if (rows * heads * dim >= PARALLEL)
    for (int64_t r = 0; r < rows; ++r) {
        const float* cos = turns + r * dim;
        const float* sin = cos + half;
        for (int h = 0; h < heads; ++h) {
            T* head = qk + r * stride + h * dim;
            float scale = 1;
            if (gain) {
                vec squares = {};
                for (int i = 0; i < dim; i += W) squares += load(head + i) * load(head + i);
                scale = inverse_rms(squares, dim, eps);
            }
            for (int i = 0; i < half; i += W) {
                vec first = load(head + i) * scale, second = load(head + half + i) * scale;
                if (gain) {
                    first *= load(gain + h * dim + i);
                    second *= load(gain + h * dim + half + i);
                }
                store(head + i, first * load(cos + i) - second * load(sin + i));
                store(head + half + i, second * load(cos + i) + first * load(sin + i));
            }
        }
    }
}

template <typename T>
void swiglu(const T* gate_up, T* out, int64_t rows, int ffn) {
#pragma omp parallel for if (rows * ffn >= PARALLEL)
    for (int64_t r = 0; r < rows; ++r) {
        const T* gate = gate_up + 2 * r * ffn;
        for (int i = 0; i < ffn; i += W) {
            const vec g = load(gate + i);
            store(out + r * ffn + i, g / (1 + exp(-g)) * load(gate + ffn + i));
        }
    }
}

}  // namespace

#define EXPORT(NAME, T)                                                                                       \
    extern "C" void rms_norm_##NAME(const T* x, const T* gain, T* out, int64_t rows, int32_t width,           \
                                    float eps) {                                                              \
        rms_norm(x, gain, out, rows, width, eps);                                                             \
    }                                                                                                         \
    extern "C" void rotate_##NAME(T* qk, const T* gain, const float* turns, int64_t rows, int64_t stride,     \
                                  int32_t heads, int32_t dim, float eps) {                                    \
        rotate(qk, gain, turns, rows, stride, heads, dim, eps);                                               \
    }                                                                                                         \
    extern "C" void swiglu_##NAME(const T* gate_up, T* out, int64_t rows, int32_t ffn) {                      \
        swiglu(gate_up, out, rows, ffn);                                                                      \
    }

EXPORT(fp32, float)
EXPORT(bf16, bf16)
