// FP8 (E4M3) in the KV cache. IEEE halves represent it exactly, and are used for it even where the model is bfloat16.

// Two floats in IEEE halves, the first low.
__device__ __forceinline__ unsigned ieee_pair(float low, float high) {
    unsigned two;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}
__device__ __forceinline__ float2 widen_ieee(unsigned two) {
    float low, high;
    asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(low), "=f"(high) : "r"(two));
    return make_float2(low, high);
}

// The two bytes of `low` and `high` in one word, of which `expand` takes two at a time.
__device__ __forceinline__ unsigned expand(unsigned short bytes) {  // to IEEE halves
    unsigned two;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(two) : "h"(bytes));
    return two;
}
__device__ __forceinline__ unsigned expand_low(unsigned bytes) { return expand((unsigned short)bytes); }
__device__ __forceinline__ unsigned expand_high(unsigned bytes) { return expand((unsigned short)(bytes >> 16)); }

// Eight FP8 numbers from eight of the model's halves, saturating at the largest.
__device__ __forceinline__ uint2 rounded_e4m3(uint4 halves) {
    const Eight from(halves);
    unsigned short pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pairs[i]) : "f"(from.at[2 * i + 1]), "f"(from.at[2 * i]));
    return make_uint2(pairs[0] | (unsigned)pairs[1] << 16, pairs[2] | (unsigned)pairs[3] << 16);
}

// Eight FP8 numbers as IEEE halves, and those as floats.
__device__ __forceinline__ uint4 expanded(uint2 raw) {
    return make_uint4(expand_low(raw.x), expand_high(raw.x), expand_low(raw.y), expand_high(raw.y));
}
__device__ __forceinline__ void expand_to(float (&to)[8], uint4 ieee) {
    const unsigned word[4] = {ieee.x, ieee.y, ieee.z, ieee.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 two = widen_ieee(word[i]);
        to[2 * i] = two.x;
        to[2 * i + 1] = two.y;
    }
}
