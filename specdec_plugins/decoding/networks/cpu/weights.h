// Weights in the layout of the kernels, and the memory of weights and passes.

#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "isa.h"
#include "team.h"
#include "tensor.h"

namespace specdec {

constexpr size_t kPage = size_t(2) << 20;

// That the system provides such pages, which is optional.
inline void ask_for_pages(void* start, size_t size) {
#if defined(__linux__)
  madvise(start, size, MADV_HUGEPAGE);
#else
  (void)start, (void)size;
#endif
}

// Memory for weights, side by side in pages of 2 MB where the system provides them: a pass over all
// weights looks up every page again, in a virtual machine through two sets of tables. A pass of
// five rows took 10 to 20 % longer with pages of 4 KB. A region is freed with its last weights.
inline std::shared_ptr<void> weight_memory(size_t bytes) {
  constexpr size_t kRegion = 32 * kPage;
  static std::mutex mutex;
  static std::shared_ptr<char> region;
  static size_t used = 0, size = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!region || used + bytes > size || region.use_count() == 1) {
    size = std::max((bytes + kPage - 1) / kPage * kPage, kRegion);
    region.reset(static_cast<char*>(std::aligned_alloc(kPage, size)), std::free);
    if (!region) throw std::bad_alloc();
    used = 0;
    ask_for_pages(region.get(), size);
  }
  std::shared_ptr<void> taken(region, region.get() + used);
  used += (bytes + 63) / 64 * 64;
  return taken;
}

// Memory for what passes read and write.
inline std::shared_ptr<void> scratch_memory(size_t bytes) {
  const size_t unit = bytes < kPage ? 64 : kPage, size = (bytes + unit - 1) / unit * unit;
  std::shared_ptr<void> taken(std::aligned_alloc(unit, size), std::free);
  if (!taken) throw std::bad_alloc();
  if (unit == kPage) ask_for_pages(taken.get(), size);
  return taken;
}

// Memory for what rows hold from pass to pass. A pass reads all of it, so it lies side by side in pages
// of 2 MB, too. Rows come and go: a region is used again when the last of its rows has gone.
inline std::shared_ptr<void> row_memory(size_t bytes) {
  constexpr size_t kRegion = 4 * kPage, kSpare = 4;
  struct Regions {
    std::mutex mutex;
    std::vector<char*> spare;
    std::shared_ptr<char> region;  // from which memory is taken now
    size_t used = 0;
  };
  static Regions& own = *new Regions;  // rows may go when static objects have
  if (bytes > kRegion / 4) return scratch_memory(bytes);
  std::shared_ptr<char> full;  // released after the lock
  const std::lock_guard<std::mutex> lock(own.mutex);
  if (!own.region || own.used + bytes > kRegion) {
    char* start = nullptr;
    if (own.spare.empty()) {
      start = static_cast<char*>(std::aligned_alloc(kPage, kRegion));
      if (!start) throw std::bad_alloc();
      ask_for_pages(start, kRegion);
    } else {
      start = own.spare.back();
      own.spare.pop_back();
    }
    const auto release = [](char* region) {
      const std::lock_guard<std::mutex> lock(own.mutex);
      if (own.spare.size() < kSpare)
        own.spare.push_back(region);
      else
        std::free(region);
    };
    full = std::exchange(own.region, std::shared_ptr<char>(start, release));
    own.used = 0;
  }
  std::shared_ptr<void> taken(own.region, own.region.get() + own.used);
  own.used += (bytes + 63) / 64 * 64;
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
  // rows, row_bytes: of the largest input that is quantised; 0 bytes = none is. scores: of one thread.
  Arena(const std::vector<Buffer>& buffers, size_t rows, size_t row_bytes, size_t scores,
        int threads) {
    const bool shares = rows > ROWS_ALONE;
    const size_t few = shares ? ROWS_ALONE : rows;
    scratch.steps_stride = padded(row_bytes ? few : 0);
    scratch.scores_stride = padded(scores);
    scratch.codes_stride = padded((few + 1) * row_bytes);
    size_t total = threads * (scratch.steps_stride + scratch.scores_stride) + padded(shares ? rows : 0);
    for (const Buffer& buffer : buffers) total += padded(buffer.count);
    blocks().numbers.grow(total);
    blocks().bytes.grow(threads * scratch.codes_stride +
                        (shares ? (rows + 1) * row_bytes : 0));
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

// One output's weights in 8 bits: where its groups of four codes lie.
struct OutputCodes {
  int8_t* codes;
  int64_t stride;  // from one group to the next
  float step;
  int32_t offset;  // see Linear
};

// Rows of weights [out, in] in 8 bits, in their own order.
struct Codes {
  Codes(const Floats<2>& weight, const Isa& isa)
      : in(int(weight.size(1))), width((in + 3) / 4 * 4) {
    const int64_t rows = weight.size(0);
    all.resize(size_t(rows) * width);
    for (int64_t n = 0; n < rows; ++n) {
      int8_t* own = &all[n * width];
      steps.push_back(isa.quantise(weight.data + n * in, in, 0, reinterpret_cast<uint8_t*>(own)));
      offsets.push_back(128 * std::accumulate(own, own + width, 0));
    }
  }

  OutputCodes of(int64_t output) {
    return {&all[output * width], 4, steps[output], offsets[output]};
  }

  int in, width;                // inputs, and the same padded to whole groups of 4
  std::vector<int8_t> all;      // [out, width]
  std::vector<float> steps;     // [out] of one code
  std::vector<int32_t> offsets;  // [out]
};

// Weights [out, in] float32 of a linear layer, or some of its outputs in any order, copied into the
// kernels' own layout.
class PackedWeights {
 public:
  PackedWeights(const Floats<2>& weight, const std::optional<Floats<1>>& bias, bool int8,
                const std::string& instruction_set)
      : isa(isa_of(instruction_set)), num_all(weight.size(0)), memory_(weight_memory) {
    open(weight.size(0), weight.size(1));
    if (bias) {
      check_same("outputs", weight.size(0), bias->size(0));
      std::copy_n(bias->data, linear.out, bias_.data);
    }
    const bool stored = !int8 && isa.has_half && are_codes(weight.data);
    if (int8 || (stored && isa.has_dot))
      pack_int8(Codes(weight, isa), int8 ? 1 : DIGITS);
    else if (stored)
      pack_bytes(weight.data);
    else if (!isa.has_half || !pack_half(weight.data))
      pack_float(weight.data);
  }

  // Some outputs of weights, without a bias; in 8 bits if there are `codes`.
  PackedWeights(const Floats<2>& weight, Codes* codes, const Types& outputs, const Isa& isa)
      : PackedWeights(outputs, weight.size(0), weight.size(1), isa) {
    if (codes)
      pack_int8(*codes, 1);
    else
      pack_float(weight.data);
  }

  // Some outputs of packed weights in 8 bits, without a bias.
  PackedWeights(const PackedWeights& all, const Types& outputs)
      : PackedWeights(outputs, all.linear.out, all.linear.in, all.isa) {
    pack_int8(all, all.linear.digits);
  }

  // The same with another bias; the weights themselves are shared.
  PackedWeights(const PackedWeights& other, const Floats<1>& bias) : PackedWeights(other) {
    check_same("outputs", linear.out, bias.size(0));
    bias_ = {};
    bias_.grow(padded(), memory_);
    std::copy_n(bias.data, linear.out, bias_.data);
    linear.bias = bias_.data;
  }

  // Bits of one weight.
  int bits() const { return linear.codes || linear.bytes ? 8 : linear.halves ? 16 : 32; }

  void multiply(const Floats<2>& x, const Tensor<float, 2>& out, int threads) const {
    check_same("inputs", linear.in, x.size(1));
    check_same("outputs", linear.out, out.size(1));
    check_same("rows", x.size(0), out.size(0));
    const Product product{x.data, int(x.size(0)), out.data};
    const Arena arena({}, product.rows, linear.row_bytes(), 0, threads);
    in_team(threads, [&](int thread, int team) {
      isa.multiply(linear, product, arena.scratch, thread, team);
    });
  }

  const Isa& isa;
  const std::vector<int32_t> types;  // which outputs of a larger product; empty = all
  const int64_t num_all;             // outputs of that
  Linear linear;

  // Of weights in 8 bits; the next four codes are a panel of such behind.
  OutputCodes of(int64_t output) const {
    const int64_t panel = isa.panel, groups = (linear.in + 3) / 4;
    return {codes_.data + (output / panel * groups * panel + output % panel) * 4, panel * 4,
            scale_.data[output], offset_.data[output]};
  }

 private:
  // Some outputs, still to be packed, of `num_all`.
  PackedWeights(const Types& outputs, int64_t num_all, int64_t in, const Isa& isa)
      : isa(isa),
        types(outputs.data, outputs.data + outputs.count()),
        num_all(num_all),
        memory_(scratch_memory) {
    for (int32_t type : types) check_token(type, num_all);
    open(outputs.count(), in);
  }

  size_t padded() const { return size_t(panels_) * isa.panel; }  // outputs

  void open(int64_t out, int64_t in) {
    check(out > 0 && in > 0, "a product needs inputs and outputs");
    linear.out = int(out);
    linear.in = int(in);
    panels_ = (linear.out + isa.panel - 1) / isa.panel;
    bias_.grow(padded(), memory_);
    scale_.grow(padded(), memory_);
    std::fill_n(scale_.data, padded(), 1.0f);
    linear.bias = bias_.data;
    linear.scale = scale_.data;
  }

  // Calls put(at, value) for every weight, with its place in the kernels' layout.
  template <typename Put>
  void lay_out(const float* weight, const Put& put) {
    const int panel = isa.panel;
    for (int first = 0; first < linear.out; first += panel) {
      std::vector<const float*> rows;
      for (int n = first; n < std::min(first + panel, linear.out); ++n)
        rows.push_back(weight + row_of(n) * linear.in);
      size_t at = size_t(first) * linear.in;
      for (int k = 0; k < linear.in; ++k, at += panel)
        for (size_t n = 0; n < rows.size(); ++n) put(at + n, rows[n][k]);
    }
  }

  void pack_float(const float* weight) {
    floats_.grow(padded() * linear.in, memory_);
    lay_out(weight, [&](size_t at, float value) { floats_.data[at] = value; });
    linear.weights = floats_.data;
  }

  // Weights that were stored in 16 bits still fit into 16 bits when they come as float32. Packed so
  // they are exact and take half the bytes, which products of few rows wait for. They are scaled to
  // the upper end of the range of float16: a model's own scale factors may be below it.
  // Returns false if one of them does not fit.
  bool pack_half(const float* weight) {
    const size_t count = size_t(linear.out) * linear.in;
    const float largest = isa.largest_size(weight, int64_t(count));
    if (!(largest > 0 && largest < INFINITY)) return false;
    const float unit = std::ldexp(1.0f, std::ilogb(largest) - 15);
    uint16_t half;
    for (size_t i = 0; i < count; ++i)
      if (!as_half(weight[i] / unit, half)) return false;
    halves_.grow(padded() * linear.in, memory_);
    lay_out(weight, [&](size_t at, float value) { as_half(value / unit, halves_.data[at]); });
    std::fill_n(scale_.data, padded(), unit);
    linear.halves = halves_.data;
    return true;
  }

  // Whether they were stored in 8 bits with a factor for each output. A bias may be divided by it, which
  // is not to become infinite.
  bool are_codes(const float* weight) const {
    for (int n = 0; n < linear.out; ++n, weight += linear.in) {
      const float step = step_of(isa.largest_size(weight, linear.in));
      const auto is_multiple = [&](float w) { return std::nearbyint(w / step) * step == w; };
      if (step != 0 && !(step > 1e-18f && std::all_of(weight, weight + linear.in, is_multiple)))
        return false;
    }
    return true;
  }

  // Such weights, for processors without products of bytes.
  void pack_bytes(const float* weight) {
    for (int n = 0; n < linear.out; ++n)
      if (const float step = step_of(isa.largest_size(weight + size_t(n) * linear.in, linear.in)))
        scale_.data[n] = step;
    codes_.grow(padded() * linear.in, memory_);
    const int panel = isa.panel;
    lay_out(weight, [&](size_t at, float value) {
      const size_t output = at / (size_t(panel) * linear.in) * panel + at % panel;
      codes_.data[at] = int8_t(std::nearbyint(value / scale_.data[output]));
    });
    linear.bytes = codes_.data;
  }

  // Converts a float32 of less than 2^16 to float16; false if that is not exact.
  static bool as_half(float value, uint16_t& half) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const int exponent = int(bits >> 23 & 0xff) - 127;
    // Below 2^-14 float16 has fewer digits: all numbers are then multiples of 2^-24.
    const int lost = 13 + std::max(0, -14 - exponent);
    const uint32_t digits = (bits & 0x7fffff) | 0x800000;
    half = uint16_t(bits >> 16 & 0x8000);
    if ((bits & 0x7fffffff) == 0) return true;
    if (exponent > 15 || lost > 23 || digits & ((1u << lost) - 1)) return false;
    // The leading digit adds one to the exponent, or is the first digit where there is none.
    half |= uint16_t((std::max(exponent, -14) + 14) * 1024 + (digits >> lost));
    return true;
  }

  template <typename From>  // Codes or PackedWeights
  void pack_int8(From&& from, int digits) {
    const int groups = (linear.in + 3) / 4;
    codes_.grow(padded() * groups * 4, memory_);
    offset_.grow(padded(), memory_);
    linear.digits = digits;
    linear.codes = codes_.data;
    linear.offset = offset_.data;
    for (int n = 0; n < linear.out; ++n) {
      const OutputCodes theirs = from.of(row_of(n)), own = of(n);
      for (int g = 0; g < groups; ++g)
        std::memcpy(own.codes + g * own.stride, theirs.codes + g * theirs.stride, 4);
      scale_.data[n] = theirs.step;
      offset_.data[n] = theirs.offset;
    }
  }

  size_t row_of(int n) const { return size_t(types.empty() ? n : types[n]); }

  int panels_ = 0;
  // Of weights for one sentence's outputs: they are small and short-lived.
  std::shared_ptr<void> (*const memory_)(size_t);
  Aligned<float> floats_, scale_, bias_;
  Aligned<int8_t> codes_;
  Aligned<uint16_t> halves_;
  Aligned<int32_t> offset_;
};

using Packed = std::shared_ptr<PackedWeights>;

// A vector for each token: in float32, or in the 8 bits of an output projection.
struct Table {
  Floats<2> floats;  // [V, D]; or
  Packed packed;

  int64_t size(int axis) const {
    if (!packed) return floats.size(axis);
    return axis ? packed->linear.in : packed->linear.out;
  }
  // The vector of a token [D], which was checked.
  void copy(int64_t token, float* out) const {
    if (packed)
      unpack(packed->linear, packed->isa.panel, token, out);
    else
      std::copy_n(floats.data + token * floats.size(1), floats.size(1), out);
  }
};

// Weights of which a few outputs are packed at a time; for 8 bits they are rounded only once.
class Choices {
 public:
  Choices(Table table, const PackedWeights& like)
      : packed_(std::move(table.packed)),
        weight_(std::move(table.floats)),
        isa_(like.isa),
        codes_(!packed_ && like.linear.digits == 1 ? new Codes(weight_, isa_) : nullptr) {}

  Packed pick(const Types& outputs) const {
    if (packed_) return std::make_shared<PackedWeights>(*packed_, outputs);
    return std::make_shared<PackedWeights>(weight_, codes_.get(), outputs, isa_);
  }

 private:
  Packed packed_;
  Floats<2> weight_;
  const Isa& isa_;
  std::unique_ptr<Codes> codes_;
};

}  // namespace specdec
