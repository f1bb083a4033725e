// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace moesim {

/// Memory for vectors that are read at random: in pages of 2 MiB, where the system has such pages,
/// so that few addresses have to be translated.
template <class T>
struct HugePages {
  using value_type = T;

  HugePages() = default;
  template <class U>
  HugePages(const HugePages<U>&) {}

  T* allocate(std::size_t count) {
    constexpr std::size_t page = std::size_t{1} << 21;
    const std::size_t bytes = count * sizeof(T);
    const bool large = bytes >= page;
    void* const memory =
        large ? std::aligned_alloc(page, (bytes + page - 1) / page * page) : std::malloc(bytes);
    if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
    // A wish: without it the memory is as good, but slower.
    if (large) static_cast<void>(madvise(memory, bytes, MADV_HUGEPAGE));
#endif
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t) { std::free(memory); }

  template <class U>
  bool operator==(const HugePages<U>&) const {
    return true;
  }
};

}  // namespace moesim
