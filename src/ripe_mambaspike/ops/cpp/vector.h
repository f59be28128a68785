// What the operators share: bfloat16 as two bytes, exponentials a compiler can vectorise, and how work is divided.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// A bfloat16: the upper half of a float, rounded to nearest even; NaN stays NaN.
struct bfloat16 {
    uint16_t bits;
};

static inline float to_float(float x) { return x; }
static inline float to_float(uint8_t x) { return static_cast<float>(x); }
static inline float to_float(bfloat16 x) {
    uint32_t wide = static_cast<uint32_t>(x.bits) << 16;
    float out;
    std::memcpy(&out, &wide, 4);
    return out;
}

static inline void store(float& out, float x) { out = x; }
static inline void store(bfloat16& out, float x) {
    uint32_t wide;
    std::memcpy(&wide, &x, 4);
    uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
    out.bits = static_cast<uint16_t>((wide & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

// exp of what is left when a multiple of ln 2 is taken off, |rest| < 0.35.
static inline float exp_rest(float rest) {
    float p = 1.9875691500e-4f;
    p = p * rest + 1.3981999507e-3f;
    p = p * rest + 8.3334519073e-3f;
    p = p * rest + 4.1665795894e-2f;
    p = p * rest + 1.6666665459e-1f;
    p = p * rest + 5.0000001201e-1f;
    return p * rest * rest + rest + 1.0f;
}

// exp without branches, within 2 units in the last place; 0 below -87.3, infinity above 88.7, NaN stays NaN.
static inline float fast_exp(float x) {
    float bounded = x < -88.0f ? -88.0f : x;
    bounded = bounded > 89.0f ? 89.0f : bounded;
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
    float shifted = bounded * 1.44269504088896341f + 12582912.0f;
    float whole = shifted - 12582912.0f;
    float rest = bounded - whole * 0.693359375f;
    rest = rest + whole * 2.12194440e-4f;
    float p = exp_rest(rest);
    int32_t bits;
    std::memcpy(&bits, &shifted, 4);
    // Two factors: 2^128 itself is no float, though the product may be one.
    int32_t exponent = bits - 0x4b400000;
    int32_t half = exponent >> 1;
    int32_t low_bits = (half + 127) << 23, high_bits = (exponent - half + 127) << 23;
    float low, high;
    std::memcpy(&low, &low_bits, 4);
    std::memcpy(&high, &high_bits, 4);
    float out = p * low * high;
    out = x < -87.3f ? 0.0f : out;
    return x != x ? x : out;
}

// exp of something not above zero, in fewer steps; never 0, 1.6e-38 below -87; NaN stays NaN.
static inline float exp_downwards(float x) {
    float bounded = x < -87.0f ? -87.0f : x;
    float shifted = bounded * 1.44269504088896341f + 12582912.0f;
    float whole = shifted - 12582912.0f;
    float rest = bounded - whole * 0.693359375f;
    rest = rest + whole * 2.12194440e-4f;
    int32_t bits;
    std::memcpy(&bits, &shifted, 4);
    bits = (bits - 0x4b400000 + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return exp_rest(rest) * power;
}

// exp(min(z, 0)) + max(z, 0); NaN stays NaN.
static inline float positive_feature(float z) {
    return exp_downwards(z > 0.0f ? 0.0f : z) + (z > 0.0f ? z : 0.0f);
}

static inline float sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

// Thread `index` of `count` takes items [first, last): always the same ones, so that sums have the same bits.
struct Share {
    int64_t first, last;
    Share(int64_t items, int index, int count)
        : first(items * index / count), last(items * (index + 1) / count) {}
};

// All `threads`, or one alone for little work: `items` that cost `each` operations. Never a number between, because the
// OpenMP library ends the threads that a smaller team leaves out and starts them anew for the next.
static inline int useful_threads(int threads, int64_t items, int64_t each) {
    return threads > 1 && items > 1 && items * each >= 32768 ? threads : 1;
}
