// Half precision without CUDA's headers. BF16 says which: bfloat16, or IEEE half.

typedef unsigned short half_t;

__device__ __forceinline__ float2 widen(unsigned two) {
#if BF16
    return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
#else
    float low, high;
    asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(low), "=f"(high) : "r"(two));
    return make_float2(low, high);
#endif
}

__device__ __forceinline__ half_t narrow(float x) {
    half_t out;
#if BF16
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(x));
#else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(x));
#endif
    return out;
}

// Eight halves as floats.
struct Eight {
    float at[8];
    __device__ __forceinline__ explicit Eight(uint4 raw) {
        const unsigned word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 two = widen(word[i]);
            at[2 * i] = two.x;
            at[2 * i + 1] = two.y;
        }
    }
};

// Load 16 bytes that are read once and not written by this kernel, bypassing the L1 cache.
__device__ __forceinline__ uint4 load_once(const half_t* at) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}

// Programmatic dependent launch (PDL). `pdl_launch`: the next kernel in the stream may start. `pdl_wait`: wait until
// the previous kernel has ended and its results are visible; what does not depend on it is loaded before this call.
// Older GPUs run one kernel after the other.
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void pdl_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
__device__ __forceinline__ void pdl_launch() {}
__device__ __forceinline__ void pdl_wait() {}
#endif
