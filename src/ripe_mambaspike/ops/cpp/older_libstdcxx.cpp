// The headers of GCC 11 and later call this function where an array's size overflows, but only their libstdc++ has it.
// With one of its own, a library that was compiled on a new system also loads on an older one.
#include <new>

namespace std {
void __throw_bad_array_new_length();
void __throw_bad_array_new_length() { throw std::bad_array_new_length(); }
}  // namespace std
