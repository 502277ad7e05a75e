// Asynchronous copies of 16 bytes from global to shared memory (cp.async), in groups that complete in order.

__device__ __forceinline__ void copy(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}
// Unless `wanted`, `from` is not read and zeros are stored.
__device__ __forceinline__ void copy_if(void* to, const void* from, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(wanted ? 16 : 0)
                 : "memory");
}
// Close a group: all copies of this thread since the previous commit.
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Wait until all but the last LEFT groups of this thread have arrived.
template <int LEFT>
__device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Load what the previous kernel wrote: from the L2 cache, as the SM's L1 cache may be stale.
__device__ __forceinline__ uint4 load_fresh(const half_t* at) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}
__device__ __forceinline__ float read_fresh(const half_t* at) {
    unsigned short v;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(v) : "l"(at));
    return widen((unsigned)v).x;
}
__device__ __forceinline__ unsigned pair(float low, float high) { return narrow(low) | (unsigned)narrow(high) << 16; }
