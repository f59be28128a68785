// Working memory that a thread keeps between calls: fresh pages cost more than the sums made in them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace {  // each file its own: names are short

class Scratch {
  public:
    ~Scratch() { std::free(memory); }

    // Forget what was taken before and make room for `bytes` in all, each piece rounded up to a cache line.
    void open(int64_t bytes, int64_t pieces) {
        const int64_t wanted = (bytes + pieces * 64 + 63) / 64 * 64;
        if (wanted > size) {
            std::free(memory);
            memory = static_cast<char*>(std::aligned_alloc(64, wanted));
            if (memory == nullptr) throw std::bad_alloc();
            size = wanted;
        }
        used = 0;
    }

    template <typename E>
    E* take(int64_t count) {
        E* out = reinterpret_cast<E*>(memory + used);
        used += (count * static_cast<int64_t>(sizeof(E)) + 63) / 64 * 64;
        return out;
    }

  private:
    char* memory = nullptr;
    int64_t size = 0, used = 0;
};

}  // namespace
