// As many channels at a time as a register has: loads, stores and the functions of the Mamba operators, plain C++ or
// AVX-512. Wider vectors than the processor's would be taken apart, comparisons number by number.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "vector.h"

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__x86_64__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
constexpr float LOG2_E = 1.44269504088896341f;

typedef float Lanes __attribute__((vector_size(LANES * 4)));
typedef int32_t IntLanes __attribute__((vector_size(LANES * 4)));
typedef uint32_t BitLanes __attribute__((vector_size(LANES * 4)));
typedef uint16_t HalfLanes __attribute__((vector_size(LANES * 2)));

namespace {

// Numbers too small to be normal become zero while one of these lives: a decaying state would crawl through them.
struct FlushDenormals {
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    FlushDenormals() { _mm_setcsr(before | 0x8040); }
    ~FlushDenormals() { _mm_setcsr(before); }
#else
    ~FlushDenormals() {}  // not an unused variable
#endif
};

inline Lanes all(float x) { return Lanes{} + x; }

inline Lanes widened(const float* from) {
    Lanes out;
    std::memcpy(&out, from, sizeof(out));
    return out;
}
inline Lanes widened(const bfloat16* from) {
    HalfLanes half;
    std::memcpy(&half, from, sizeof(half));
    BitLanes bits = __builtin_convertvector(half, BitLanes) << 16;
    Lanes out;
    std::memcpy(&out, &bits, sizeof(out));
    return out;
}
inline void narrowed(float* to, Lanes x) { std::memcpy(to, &x, sizeof(x)); }
inline void narrowed(bfloat16* to, Lanes x) {
    BitLanes bits;
    std::memcpy(&bits, &x, sizeof(bits));
    BitLanes rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    rounded = (bits & 0x7fffffffu) > 0x7f800000u ? BitLanes{} + 0x7fc0u : rounded;
    HalfLanes half = __builtin_convertvector(rounded, HalfLanes);
    std::memcpy(to, &half, sizeof(half));
}

// The first `count` lanes from memory, the others zero.
template <typename T>
inline Lanes load(const T* from, int count) {
    if (__builtin_expect(count == LANES, 1)) return widened(from);
    T whole[LANES] = {};
    std::memcpy(whole, from, count * sizeof(T));
    return widened(whole);
}

template <typename T>
inline void save(T* to, Lanes x, int count) {
    if (__builtin_expect(count == LANES, 1)) return narrowed(to, x);
    T whole[LANES];
    narrowed(whole, x);
    std::memcpy(to, whole, count * sizeof(T));
}

// Rows of `columns` numbers, one row a channel, turned into columns of lanes.
inline void turn(Lanes* out, const float* rows, int columns, int count, float scale) {
    for (int column = 0; column < columns; ++column) {
        float whole[LANES] = {};
        for (int lane = 0; lane < count; ++lane) whole[lane] = rows[int64_t(lane) * columns + column] * scale;
        out[column] = widened(whole);
    }
}

inline float sum_of(Lanes x) {
    float lanes[LANES];
    std::memcpy(lanes, &x, sizeof(lanes));
    for (int width = LANES / 2; width; width /= 2)
        for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    return lanes[0];
}

// x 2^whole for a whole number; 0 and infinity where the result is no float.
inline Lanes times_power(Lanes x, Lanes whole) {
#if defined(__AVX512F__)
    return (Lanes)_mm512_scalef_ps((__m512)x, (__m512)whole);
#else
    Lanes bounded = whole < -126.0f ? all(-126.0f) : whole;
    bounded = bounded > 127.0f ? all(127.0f) : bounded;
    Lanes power = (Lanes)((__builtin_convertvector(bounded, IntLanes) + 127) << 23);
    Lanes out = whole < -126.0f ? Lanes{} : x * power;
    return whole != whole ? whole : out;
#endif
}

inline Lanes rounded(Lanes x) {
#if defined(__AVX512F__)
    return (Lanes)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    return (x + 12582912.0f) - 12582912.0f;  // within 2^22, which the callers see to
#endif
}

// No less than the bound; NaN stays NaN.
inline Lanes at_least(float bound, Lanes x) {
#if defined(__AVX512F__)
    return (Lanes)_mm512_max_ps((__m512)all(bound), (__m512)x);
#else
    return x < bound ? all(bound) : x;
#endif
}

// 2^x, within 2e-7 and ever better towards x = 0: an error near 1 would add up over the tokens of a slow decay.
inline Lanes exp2_of(Lanes x) {
    x = at_least(-150.0f, x);  // minus infinity has no rest
    Lanes whole = rounded(x), rest = x - whole;
    Lanes p = 1.32647271e-3f * rest + 9.67151264e-3f;
    p = p * rest + 5.55073374e-2f;
    p = p * rest + 2.40222421e-1f;
    p = p * rest + 6.93146978e-1f;
    return times_power(p * rest + 1.0f, whole);
}

inline Lanes exp_of(Lanes x) {
    x = at_least(-104.0f, x);
    x = x > 89.0f ? all(89.0f) : x;
    Lanes whole = rounded(x * LOG2_E);
    Lanes rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    Lanes p = 1.38436535e-3f * rest + 8.37415531e-3f;
    p = p * rest + 4.1668002e-2f;
    p = p * rest + 1.66664313e-1f;
    p = p * rest + 4.99999942e-1f;
    p = p * rest + 1.00000003f;
    return times_power(p * rest + 1.0f, whole);
}

inline Lanes sigmoid_of(Lanes x) { return 1.0f / (1.0f + exp_of(-x)); }
inline Lanes silu_of(Lanes x) { return x / (1.0f + exp_of(-x)); }
// The derivative of silu, given sigmoid(x).
inline Lanes silu_slope(Lanes x, Lanes sigmoid) { return sigmoid * (1.0f + x * (1.0f - sigmoid)); }

// log(1 + e^x) = max(x, 0) + 2 artanh(z / (2 + z)) with z = e^-|x|: small results keep their precision.
inline Lanes softplus_of(Lanes x) {
    Lanes z = exp_of(x < 0.0f ? x : -x);
    Lanes s = z / (2.0f + z), square = s * s;
    Lanes p = 2.44249089e-1f * square + 2.13899605e-1f;
    p = p * square + 2.86210421e-1f;
    p = p * square + 3.99986782e-1f;
    p = p * square + 6.66666795e-1f;
    p = p * square + 2.0f;
    return (x > 0.0f ? x : Lanes{}) + s * p;
}

}  // namespace
