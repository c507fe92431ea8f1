#pragma once
// The host's twin of types.cuh: the same storage types over <cstdint>.
#include <cstdint>

#include "device.h"

struct bf16 { uint16_t bits; };
struct e4m3 { uint8_t bits; };

struct alignas(16) Vec16 { uint32_t word[4]; };
struct alignas(8) Vec8 { uint32_t word[2]; };
