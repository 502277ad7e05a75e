// Rows of bytes on their way to shared memory by the copy engine of a multiprocessor, counted by barriers there
// (compute capability 9.0 on).

typedef unsigned long long barrier_t;

__device__ __forceinline__ unsigned shared_address(const void* at) { return (unsigned)__cvta_generic_to_shared(at); }

// One thread does this for all, and a block's barrier follows.
__device__ __forceinline__ void prepare(barrier_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void prepared() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(barrier_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrive, and let the barrier wait for so many bytes.
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
// A multiple of 16 bytes; both ends are aligned to 16.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, int bytes, barrier_t* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}
