// A product of 8 or 16 rows, HEIGHT, of x and of 8 outputs of a weight that lie in shared memory, on tensor cores. Which 8
// of 32 neighbouring inputs a lane holds is the same for x and W, so the order of the inputs does not matter.
//
// EIGHT: W is E4M3, and is multiplied as bfloat16.
#define HALVES (HEIGHT / 8)  // rows of x that a lane holds
#if BF16
#define SHRINK 1.0f
#else
#define SHRINK 0.0625f  // x times a gain may exceed the range of IEEE halves
#endif

// The second and the fourth of four E4M3 numbers, as bfloat16. Shifted to bfloat16's exponent and mantissa, an E4M3
// number is 2^-120 times too small.
__device__ __forceinline__ unsigned odd_of(unsigned four) {
    unsigned two;
    asm("mul.rn.bf16x2 %0, %1, %2;"
        : "=r"(two) : "r"((four & 0x80008000u) | (four & 0x7f007f00u) >> 4), "r"(0x7b807b80u));  // 2^120
    return two;
}
// Four inputs of the lane's rows g, and g + 8 of 16 rows.
__device__ __forceinline__ void multiply_four(float* sums, uint2 a, uint2 below, unsigned w_low, unsigned w_high) {
#if HEIGHT > 8
    multiply_16(sums, a.x, below.x, a.y, below.y, w_low, w_high);
#else
    multiply(sums, a.x, a.y, w_low, w_high);
#endif
}
// sums += a W for eight inputs of a lane: of W in memory order, of x in that of `ordered`.
__device__ __forceinline__ void multiply_eight(float* sums, const uint4* a, uint4 w, int part) {
    const uint4 below = a[HALVES - 1];
    const uint2 first = make_uint2(a->x, a->y), last = make_uint2(a->z, a->w);
#if EIGHT
    const unsigned low = part ? w.z : w.x, high = part ? w.w : w.y;
    multiply_four(sums, first, make_uint2(below.x, below.y), odd_of(low << 8), odd_of(low));
    multiply_four(sums, last, make_uint2(below.z, below.w), odd_of(high << 8), odd_of(high));
#else
    multiply_four(sums, first, make_uint2(below.x, below.y), w.x, w.y);
    multiply_four(sums, last, make_uint2(below.z, below.w), w.z, w.w);
#endif
}
// Eight inputs of x in the order in which `odd_of` pairs those of W: first and third, second and fourth.
__device__ __forceinline__ uint4 ordered(uint4 v) {
#if EIGHT
    return make_uint4(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632),
                      __byte_perm(v.z, v.w, 0x5410), __byte_perm(v.z, v.w, 0x7632));
#else
    return v;
#endif
}

__device__ __forceinline__ unsigned scale(unsigned two, unsigned gains) {
#if BF16
    unsigned scaled;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(scaled) : "r"(two), "r"(gains));
    return scaled;
#else
    const float2 x = widen(two), by = widen(gains);
    return pair(x.x * by.x * SHRINK, x.y * by.y * SHRINK);
#endif
}
__device__ __forceinline__ uint4 scale_eight(uint4 x, uint4 gains) {
    return make_uint4(scale(x.x, gains.x), scale(x.y, gains.y), scale(x.z, gains.z), scale(x.w, gains.w));
}
__device__ __forceinline__ float squares_of(unsigned two) {
    const float2 x = widen(two);
    return x.x * x.x + x.y * x.y;
}
