// One access that goes astray: tests/cpu/test_closed_world.py inserts this into a rendered query kernel. Its
// slots are {which access, which array, bytes from there}; each access is a line of its own.
__device__ void stray(const Params& params, int lane) {
    if (blockIdx.x != 2 || lane != 5) return;
    const uint64_t arrays[] = {
        reinterpret_cast<uint64_t>(params.qkv), reinterpret_cast<uint64_t>(params.w_qa), reinterpret_cast<uint64_t>(params.w_kva),
        reinterpret_cast<uint64_t>(params.w_qb), reinterpret_cast<uint64_t>(params.w_uk), reinterpret_cast<uint64_t>(params.cache),
        reinterpret_cast<uint64_t>(params.slots), reinterpret_cast<uint64_t>(params.q_scale_inv), reinterpret_cast<uint64_t>(params.out),
        reinterpret_cast<uint64_t>(dynamic_shared()),
    };
    const int64_t which = params.slots[0], array = params.slots[1], bytes = params.slots[2];
    uint8_t* const at = reinterpret_cast<uint8_t*>(arrays[array] + bytes);
    const SharedAddr shared = shared_addr(dynamic_shared()), near = shared + static_cast<uint32_t>(bytes);
    const SharedAddr barrier = shared + 100224;
    uint8_t local[64] = {};
    const volatile uint64_t size = 24;
    switch (which) {
        case 0: *static_cast<volatile uint8_t*>(at); break;                                                // reads 1
        case 1: *reinterpret_cast<volatile uint16_t*>(at); break;                                          // reads 2
        case 2: *reinterpret_cast<volatile uint32_t*>(at); break;                                          // reads 4
        case 3: *reinterpret_cast<volatile uint64_t*>(at); break;                                          // reads 8
        case 4: *static_cast<volatile uint8_t*>(at) = 1; break;                                            // writes 1
        case 5: *reinterpret_cast<volatile uint16_t*>(at) = 1; break;                                      // writes 2
        case 6: *reinterpret_cast<volatile uint32_t*>(at) = 1; break;                                      // writes 4
        case 7: *reinterpret_cast<volatile uint64_t*>(at) = 1; break;                                      // writes 8
        case 8: *reinterpret_cast<Vec16*>(at) = {{1, 2, 3, 4}}; break;                                     // writes 16
        case 9: ld_global_cg_16(at); break;                                                                // reads 16
        case 10: ld_global_cg_8(at); break;                                                                // reads 8
        case 11: ld_global_cg_4(at); break;                                                                // reads 4
        case 12: ld_global_cg_2(at); break;                                                                // reads 2
        case 13: ld_global_nc_16(at); break;                                                               // reads 16
        case 14: cp_async_16(shared, at); break;                                                           // reads 16
        case 15: cp_async_bulk(shared, at, 64, barrier); break;                                            // reads 64
        case 16: cp_async_bulk_multicast(shared, at, 64, barrier, 0xFF); break;                            // reads 64
        case 17: atomicAdd(reinterpret_cast<uint32_t*>(at), 1u); break;                                    // writes 4
        case 18: __builtin_memcpy(local, at, size); break;                                                 // reads 24
        case 19: __builtin_memcpy(at, local, size); break;                                                 // writes 24
        case 20: __builtin_memset(at, 7, size); break;                                                     // writes 24
        case 21: ld_shared_16(near); break;                                                                // shared 16
        case 22: st_shared_16(near, {{1, 2, 3, 4}}); break;                                                // shared 16
        case 23: st_async(mapa(near, 3), Vec16{{1, 2, 3, 4}}, mapa(barrier, 3)); break;                    // shared 16
        case 24: st_async(mapa(near, 8), Vec16{{1, 2, 3, 4}}, mapa(barrier, 8)); break;                    // shared 16
        case 25: cp_async_16(near, params.qkv); break;                                                     // shared 16
        case 26: cp_async_bulk(near, params.qkv, 64, barrier); break;                                      // shared 64
        case 27: cp_async_bulk_multicast(near, params.qkv, 64, barrier, 0x18); break;                      // shared 64
    }
    asm volatile("" ::"r"(local) : "memory");  // what was copied counts
}
