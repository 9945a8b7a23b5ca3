// Memory of weights and of passes.

#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "isa.h"

namespace specdec {

// Memory for weights, side by side in pages of 2 MB where the system provides them: a pass over all
// weights looks up every page again, in a virtual machine through two sets of tables. A pass of
// five rows took 10 to 20 % longer with pages of 4 KB. A region is freed with its last weights.
inline std::shared_ptr<void> weight_memory(size_t bytes) {
  constexpr size_t kPage = size_t(2) << 20, kRegion = 32 * kPage;
  static std::mutex mutex;
  static std::shared_ptr<char> region;
  static size_t used = 0, size = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!region || used + bytes > size || region.use_count() == 1) {
    size = std::max((bytes + kPage - 1) / kPage * kPage, kRegion);
    region.reset(static_cast<char*>(std::aligned_alloc(kPage, size)), std::free);
    if (!region) throw std::bad_alloc();
    used = 0;
#if defined(__linux__)
    madvise(region.get(), size, MADV_HUGEPAGE);  // optional: it works without
#endif
  }
  std::shared_ptr<void> taken(region, region.get() + used);
  used += (bytes + 63) / 64 * 64;
  return taken;
}

inline std::shared_ptr<void> scratch_memory(size_t bytes) {
  std::shared_ptr<void> taken(std::aligned_alloc(64, (bytes + 63) / 64 * 64), std::free);
  if (!taken) throw std::bad_alloc();
  return taken;
}

template <typename T>
struct Aligned {
  T* data = nullptr;
  size_t size = 0;
  void grow(size_t wanted, std::shared_ptr<void> (*memory)(size_t) = scratch_memory) {
    if (wanted <= size) return;
    *this = {};  // before there are two
    owner = memory(wanted * sizeof(T));
    data = static_cast<T*>(owner.get());
    std::memset(data, 0, wanted * sizeof(T));
    size = wanted;
  }

 private:
  std::shared_ptr<void> owner;
};

// The memory of one pass. Each Python thread that decodes keeps its blocks from pass to pass, unless
// a pass was so long that asking for them again costs nothing beside it.
class Arena {
 public:
  struct Buffer {
    float** start;
    size_t count;
  };
  // rows, wide: of the largest input that is quantised; wide 0 = none is. scores: of one thread.
  Arena(const std::vector<Buffer>& buffers, size_t rows, size_t wide, size_t scores, int threads) {
    const bool shares = rows > ROWS_ALONE;
    const size_t few = shares ? ROWS_ALONE : rows;
    scratch.steps_stride = padded(wide ? few : 0);
    scratch.scores_stride = padded(scores);
    scratch.codes_stride = padded(wide ? (few + 1) * (wide + 3) : 0);
    size_t total = threads * (scratch.steps_stride + scratch.scores_stride) + padded(shares ? rows : 0);
    for (const Buffer& buffer : buffers) total += padded(buffer.count);
    blocks().numbers.grow(total);
    blocks().bytes.grow(threads * scratch.codes_stride +
                        (shares && wide ? (rows + 1) * (wide + 3) : 0));
    float* next = blocks().numbers.data;
    const auto take = [&](size_t count) { return std::exchange(next, next + padded(count)); };
    for (const Buffer& buffer : buffers) *buffer.start = take(buffer.count);
    scratch.steps = take(threads * scratch.steps_stride);
    scratch.scores = take(threads * scratch.scores_stride);
    scratch.shared_steps = next;
    scratch.codes = blocks().bytes.data;
    scratch.shared_codes = scratch.codes + threads * scratch.codes_stride;
  }
  Arena(const Arena&) = delete;
  ~Arena() {
    constexpr size_t kKept = size_t(32) << 20;  // bytes
    if (blocks().numbers.size * sizeof(float) > kKept) blocks().numbers = {};
    if (blocks().bytes.size > kKept) blocks().bytes = {};
  }

  Scratch scratch{};

 private:
  struct Blocks {
    Aligned<float> numbers;
    Aligned<uint8_t> bytes;
  };
  static Blocks& blocks() {
    thread_local Blocks own;
    return own;
  }
  static size_t padded(size_t count) { return (count + 63) / 64 * 64; }
};

}  // namespace specdec
