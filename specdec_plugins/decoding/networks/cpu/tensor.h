// Tensors that kernels read and write in place, and what callers must keep to.

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace specdec {

// On the CPU and dense; with `strided_rows` the first axis may have any stride.
template <typename T, int rank, bool strided_rows = false>
struct Tensor {
  T* data = nullptr;
  int64_t sizes[rank] = {};
  int64_t row_stride = 0;  // from one entry of the first axis to the next
  std::shared_ptr<const void> owner;  // keeps the memory, if the caller does not

  int64_t size(int axis) const { return sizes[axis]; }
  int64_t count() const {
    int64_t total = 1;
    for (int64_t size : sizes) total *= size;
    return total;
  }
};

// All leading axes, of any number, as one.
template <typename T, int rank>
struct Folded : Tensor<T, rank> {};

struct Bfloat16 {
  uint16_t bits;  // the upper half of a float32
};

template <int rank>
using Floats = Tensor<const float, rank>;
template <int rank>
using Integers = Tensor<const int64_t, rank>;
template <int rank>
using Rows = Tensor<const float, rank, true>;  // of any stride
using Types = Tensor<const int32_t, 1>;
// Keys and values: [layers, rows * positions, 2, heads, head width].
using Storage = Tensor<float, 5, true>;

// Memory as a tensor of these sizes.
template <typename T, typename... Sizes>
Tensor<T, sizeof...(Sizes)> view(T* data, Sizes... sizes) {
  return {data, {int64_t(sizes)...}, 0, {}};
}

template <typename T, int rank, bool strided_rows>
T* data_of(const std::optional<Tensor<T, rank, strided_rows>>& tensor) {
  return tensor ? tensor->data : nullptr;
}

// What callers must keep to, so that a kernel stays within its tensors. ValueError and IndexError.

inline void check(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

// Sizes of the same thing in several tensors.
template <typename... Sizes>
void check_same(const char* what, int64_t first, Sizes... others) {
  if (((int64_t(others) != first) || ...))
    throw std::invalid_argument(std::string("tensors differ in ") + what);
}

inline void check_token(int64_t token, int64_t vocab_size) {
  if (token < 0 || token >= vocab_size)
    throw std::out_of_range("token " + std::to_string(token) + " is not in the vocabulary");
}

}  // namespace specdec
