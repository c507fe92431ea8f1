#pragma once
// Fixed-width names and the storage types of the formats. No toolkit header is included.

using uint8_t = unsigned char;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;

struct bf16 { uint16_t bits; };
struct e4m3 { uint8_t bits; };

// What a kernel's phases pass around: 16 bytes, eight BF16 values when they are values.
struct alignas(16) Vec16 { uint32_t word[4]; };
struct alignas(8) Vec8 { uint32_t word[2]; };
