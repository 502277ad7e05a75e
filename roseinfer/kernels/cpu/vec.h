// Vectors of 16 floats, loaded from and stored to float32 and bfloat16.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {

constexpr int W = 16;  // floats in a vector
typedef float vec __attribute__((vector_size(W * sizeof(float)), aligned(4)));
typedef int32_t ints __attribute__((vector_size(W * sizeof(int32_t)), aligned(4)));
typedef uint16_t narrow __attribute__((vector_size(W * sizeof(uint16_t)), aligned(2)));
typedef uint32_t wide __attribute__((vector_size(W * sizeof(uint32_t)), aligned(4)));

inline int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

struct bf16 {
    uint16_t bits;
};

// GCC copies a vector in two halves through the stack if it is given to std::memcpy, and converts it in halves.
#ifdef __AVX512F__
inline vec load(const float* p) { return reinterpret_cast<vec>(_mm512_loadu_ps(p)); }

inline vec load(const bf16* p) {
    const __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return reinterpret_cast<vec>(_mm512_slli_epi32(w, 16));
}

inline void store(float* p, vec v) { _mm512_storeu_ps(p, reinterpret_cast<__m512>(v)); }
#else
inline vec load(const float* p) {
    vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline vec load(const bf16* p) {
    narrow n;
    std::memcpy(&n, p, sizeof n);
    const wide w = __builtin_convertvector(n, wide) << 16;
    vec v;
    std::memcpy(&v, &w, sizeof v);
    return v;
}

inline void store(float* p, vec v) { std::memcpy(p, &v, sizeof v); }
#endif

inline void store(bf16* p, vec v) {  // round to nearest, ties to even
#ifdef __AVX512BF16__
    const __m256bh n = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(v));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(n));
#else
    wide w;
    std::memcpy(&w, &v, sizeof w);
    const narrow n = __builtin_convertvector((w + 0x7fff + ((w >> 16) & 1)) >> 16, narrow);
    std::memcpy(p, &n, sizeof n);
#endif
}

// `count` elements as floats.
inline void widen(const bf16* from, float* to, int64_t count) {
    int64_t i = 0;
    for (; i + W <= count; i += W) store(to + i, load(from + i));
    for (; i < count; ++i) {
        const uint32_t bits = static_cast<uint32_t>(from[i].bits) << 16;
        std::memcpy(to + i, &bits, sizeof bits);
    }
}

// 2^n · 2^f with n whole and f from -1/2 to 1/2; relative error below 1e-7 · (1 + |x|). Saturates at e^±87.
inline vec exp(vec x) {
    vec t = x * 1.44269504f;
#ifdef __AVX512F__
    const __m512 most = _mm512_set1_ps(126.0f);
    // Of a NaN and a number these return the second operand: a NaN stays one.
    t = reinterpret_cast<vec>(_mm512_max_ps(-most, _mm512_min_ps(most, reinterpret_cast<__m512>(t))));
    const __m512 n = _mm512_roundscale_ps(reinterpret_cast<__m512>(t), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const vec f = (t - reinterpret_cast<vec>(n)) * 0.69314718f;
#else
    t = t < -126.0f ? vec{} - 126.0f : t;
    t = t > 126.0f ? vec{} + 126.0f : t;
    const ints n = __builtin_convertvector(t + (t < 0.0f ? vec{} - 0.5f : vec{} + 0.5f), ints);
    const vec f = (t - __builtin_convertvector(n, vec)) * 0.69314718f;
#endif
    const vec tail = f * (1 / 24.0f + f * (1 / 120.0f + f * (1 / 720.0f + f * (1 / 5040.0f))));
    const vec fraction = 1 + f * (1 + f * (0.5f + f * (1 / 6.0f + tail)));
#ifdef __AVX512F__
    return reinterpret_cast<vec>(_mm512_scalef_ps(reinterpret_cast<__m512>(fraction), n));
#else
    const ints bits = (n + 127) << 23;
    vec whole;
    std::memcpy(&whole, &bits, sizeof whole);
    return fraction * whole;
#endif
}

inline float sum(vec v) {
#ifdef __AVX512F__
    return _mm512_reduce_add_ps(reinterpret_cast<__m512>(v));
#else
    float total = 0;
    for (int i = 0; i < W; ++i) total += v[i];
    return total;
#endif
}

// The sum of each of 16 vectors.
inline vec sums(const vec (&x)[W]) {
#ifdef __AVX512F__
    __m512 four[4];  // each: in its quarters, parts of the sums of four vectors
    for (int i = 0; i < 4; ++i) {
        __m512 two[2];
        for (int j = 0; j < 2; ++j) {
            const __m512 a = reinterpret_cast<__m512>(x[4 * i + 2 * j]), b = reinterpret_cast<__m512>(x[4 * i + 2 * j + 1]);
            two[j] = _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b);
        }
        const __m512d a = _mm512_castps_pd(two[0]), b = _mm512_castps_pd(two[1]);
        four[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) + _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
    const auto halves = [](__m512 a, __m512 b) {
        return _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd);
    };
    return reinterpret_cast<vec>(halves(halves(four[0], four[1]), halves(four[2], four[3])));
#else
    vec total;
    for (int i = 0; i < W; ++i) total[i] = sum(x[i]);
    return total;
#endif
}

inline float largest(vec v) {
#ifdef __AVX512F__
    return _mm512_reduce_max_ps(reinterpret_cast<__m512>(v));
#else
    float most = v[0];
    for (int i = 1; i < W; ++i) most = v[i] > most ? v[i] : most;
    return most;
#endif
}

// The largest of `length` floats; those from `length` to `end`, a multiple of W, are set to -infinity.
inline float largest(float* x, int64_t length, int64_t end) {
    std::fill(x + length, x + end, -INFINITY);
    vec most = load(x);
    for (int64_t t = W; t < end; t += W) most = load(x + t) > most ? load(x + t) : most;
    return largest(most);
}

}  // namespace
