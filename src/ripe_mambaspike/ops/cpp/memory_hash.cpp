// A hash of the contents of memory: any change of one value that is read changes it.
#include <cstdint>
#include <cstring>

namespace {

constexpr int LANES = 64;  // independent chains, which the compiler vectorizes
constexpr uint32_t MULTIPLIER = 0x9E3779B1u;

// One step is a bijection of `hash`; the shift lets high bits (signs, exponents) reach all others.
inline uint32_t mixed(uint32_t hash, uint32_t word) {
    hash = (hash ^ word) * MULTIPLIER;
    return hash ^ (hash >> 15);
}

}  // namespace

// `count` regions, each by its address and its size in bytes → one number. Reads every `step`-th block of 64 words, and
// the rest after the last whole block.
extern "C" void ripe_memory_hash(int64_t count, const int64_t* addresses, const int64_t* sizes, int64_t step,
                                 uint64_t* out, int64_t) {
    uint32_t lanes[LANES] = {};
    for (int64_t region = 0; region < count; ++region) {
        const char* data = reinterpret_cast<const char*>(addresses[region]);
        const int64_t size = sizes[region], block = sizeof(lanes), whole = size / block * block;
        uint32_t words[LANES];
        for (int64_t at = 0; at < whole; at += step * block) {
            std::memcpy(words, data + at, block);
            for (int lane = 0; lane < LANES; ++lane) lanes[lane] = mixed(lanes[lane], words[lane]);
        }
        std::memset(words, 0, block);
        std::memcpy(words, data + whole, size - whole);
        for (int lane = 0; lane < LANES; ++lane) lanes[lane] = mixed(lanes[lane], words[lane]);
    }
    uint64_t hash = 0;
    for (const uint32_t lane : lanes) {
        hash = (hash ^ lane) * 0x9E3779B97F4A7C15ull;
        hash ^= hash >> 32;
    }
    *out = hash;
}
