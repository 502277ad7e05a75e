// Bulk asynchronous copies from global to shared memory (cp.async.bulk, by the SM's TMA unit), whose completion
// mbarriers in shared memory track (compute capability 9.0 or later).

typedef unsigned long long barrier_t;

__device__ __forceinline__ unsigned shared_address(const void* at) { return (unsigned)__cvta_generic_to_shared(at); }

// Initialise a barrier, by one thread, which then calls `prepared`; a __syncthreads must follow.
__device__ __forceinline__ void prepare(barrier_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void prepared() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(barrier_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrive, and have the barrier's phase also wait for `bytes` bytes to be copied.
__device__ __forceinline__ void expect(barrier_t* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
// Wait until the barrier's phase of this parity is over.
__device__ __forceinline__ void await(barrier_t* barrier, int parity) {
    asm volatile(
        "{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again;}" ::"r"(
            shared_address(barrier)), "r"(parity)
        : "memory");
}
// The cache policy of what is read once: the L2 cache evicts it first.
__device__ __forceinline__ unsigned long long once() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void copy_bulk_once(
    void* to, const void* from, int bytes, barrier_t* barrier, unsigned long long policy
) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
}
// Copy `bytes` bytes, a multiple of 16; both addresses are aligned to 16.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, int bytes, barrier_t* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}
