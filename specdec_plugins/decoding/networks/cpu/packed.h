// Weights in the layout that the kernels read, and the memory of a pass.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "team.h"

namespace specdec {

template <typename T>
struct Aligned {
  T* data = nullptr;
  size_t size = 0;
  void grow(size_t wanted) {
    if (wanted <= size) return;
    std::free(data);
    const size_t bytes = (wanted * sizeof(T) + 63) / 64 * 64;
    data = static_cast<T*>(std::aligned_alloc(64, bytes));
    if (!data) throw std::bad_alloc();
    std::memset(data, 0, bytes);
    size = wanted;
  }
  Aligned() = default;
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  ~Aligned() { std::free(data); }
};

template <typename T>
const T* at_address(uintptr_t address) {
  return reinterpret_cast<const T*>(address);
}

inline Scratch scratch_for(const std::vector<size_t>& floats, size_t codes, size_t steps,
                           size_t scores, int threads) {
  // One set for each Python thread that decodes; it grows to the largest pass.
  thread_local Aligned<float> numbers;
  thread_local Aligned<uint8_t> bytes;
  const auto padded = [](size_t count) { return (count + 63) / 64 * 64; };
  size_t total = 0;
  for (size_t count : floats) total += padded(count);
  const size_t steps_stride = padded(steps), scores_stride = padded(scores);
  numbers.grow(total + threads * (steps_stride + scores_stride));
  const size_t codes_stride = padded(codes);
  bytes.grow(threads * codes_stride);
  float* next = numbers.data;
  const auto take = [&](size_t count) {
    float* taken = next;
    next += padded(count);
    return taken;
  };
  Scratch s{};
  float** const parts[] = {&s.x, &s.normed, &s.branch, &s.qkv, &s.hidden};
  for (size_t i = 0; i < floats.size(); ++i) *parts[i] = take(floats[i]);
  s.steps = take(threads * steps_stride);
  s.scores = take(threads * scores_stride);
  s.codes = bytes.data;
  s.codes_stride = codes_stride;
  s.steps_stride = steps_stride;
  s.scores_stride = scores_stride;
  return s;
}

// Weights [out, in] float32 of a linear layer, copied into the kernels' own layout.
class PackedWeights {
 public:
  PackedWeights(uintptr_t weight, uintptr_t bias, int out, int in, bool int8,
                const std::string& isa_name)
      : isa(isa_of(isa_name)) {
    if (int8 && !isa.has_int8)
      throw std::invalid_argument(std::string(isa.name) + " has no 8-bit products");
    const int panel = isa.panel, panels = (out + panel - 1) / panel;
    linear.in = in;
    linear.out = out;
    bias_.grow(size_t(panels) * panel);
    if (bias) std::copy_n(at_address<float>(bias), out, bias_.data);
    linear.bias = bias_.data;
    if (int8)
      pack_int8(at_address<float>(weight), panel, panels);
    else
      pack_float(at_address<float>(weight), panel, panels);
  }

  void multiply(uintptr_t input, int rows, uintptr_t output, int threads) const {
    const Product product{at_address<float>(input), rows, reinterpret_cast<float*>(output)};
    const Scratch scratch =
        scratch_for({}, linear.codes ? size_t(rows) * (linear.in + 3) : 0, rows, 0, threads);
    in_team(threads, [&](int thread, int team) {
      isa.multiply(linear, product, scratch, thread, team);
    });
  }

  const Isa& isa;
  Linear linear;

 private:
  void pack_float(const float* weight, int panel, int panels) {
    floats_.grow(size_t(panels) * panel * linear.in);
    for (int n = 0; n < linear.out; ++n)
      for (int k = 0; k < linear.in; ++k)
        floats_.data[(size_t(n / panel) * linear.in + k) * panel + n % panel] =
            weight[size_t(n) * linear.in + k];
    linear.weights = floats_.data;
  }

  void pack_int8(const float* weight, int panel, int panels) {
    const int groups = (linear.in + 3) / 4;
    codes_.grow(size_t(panels) * panel * groups * 4);
    scale_.grow(size_t(panels) * panel);
    offset_.grow(size_t(panels) * panel);
    for (int n = 0; n < linear.out; ++n) {
      const float* row = weight + size_t(n) * linear.in;
      float largest = 0;
      for (int k = 0; k < linear.in; ++k) largest = std::max(largest, std::fabs(row[k]));
      const float inverse = largest > 0 ? 127 / largest : 0;
      int32_t sum = 0;
      for (int k = 0; k < linear.in; ++k) {
        const int code = int(std::nearbyint(row[k] * inverse));
        sum += code;
        codes_.data[((size_t(n / panel) * groups + k / 4) * panel + n % panel) * 4 + k % 4] =
            int8_t(code);
      }
      scale_.data[n] = largest / 127;
      offset_.data[n] = 128 * sum;
    }
    linear.codes = codes_.data;
    linear.scale = scale_.data;
    linear.offset = offset_.data;
  }

  Aligned<float> floats_, scale_, bias_;
  Aligned<int8_t> codes_;
  Aligned<int32_t> offset_;
};

}  // namespace specdec
