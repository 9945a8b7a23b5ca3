// Tensors from Python: their type, rank and device are checked, and they are read in place.
//
// This reads a few attributes of the Python object, which costs a fraction of a microsecond;
// linking torch instead would tie a build to one version of it.

#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace specdec {

constexpr int kAny = 0;  // any rank

// On the CPU and dense: if it is not dense, one of `const T` is copied, and one of `T`, which is
// written in place, is refused. With `strided_rows` the first axis may have any stride.
template <typename T, int rank, bool strided_rows = false>
struct Tensor {
  static constexpr int kMost = rank == kAny ? 6 : rank;  // axes
  T* data = nullptr;
  int axes = rank;
  int64_t sizes[kMost] = {};
  int64_t row_stride = 0;  // from one entry of the first axis to the next
  pybind11::object owner;

  int64_t size(int axis) const { return sizes[axis < 0 ? axes + axis : axis]; }
  int64_t count() const {
    int64_t total = 1;
    for (int axis = 0; axis < axes; ++axis) total *= sizes[axis];
    return total;
  }
};

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

// A vector that can be used as a tensor of these sizes.
template <typename T, int rank>
struct Owned {
  std::vector<T> values;
  int64_t sizes[rank];
  template <typename... Sizes>
  explicit Owned(Sizes... sizes) : values((int64_t(sizes) * ...)), sizes{sizes...} {
    static_assert(sizeof...(Sizes) == rank);
  }
  Tensor<T, rank> written() { return fill<T>(values.data()); }
  Tensor<const T, rank> read() const { return fill<const T>(values.data()); }

 private:
  template <typename U>
  Tensor<U, rank> fill(U* data) const {
    Tensor<U, rank> tensor;
    tensor.data = data;
    std::copy_n(sizes, rank, tensor.sizes);
    return tensor;
  }
};

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

inline void check_within(const Integers<1>& values, int64_t least, int64_t most, const char* what) {
  for (int64_t i = 0; i < values.count(); ++i)
    if (values.data[i] < least || values.data[i] > most)
      throw std::out_of_range(std::string(what) + " is out of range");
}

inline void check_token(int64_t token, int64_t vocab_size) {
  if (token < 0 || token >= vocab_size)
    throw std::out_of_range("token " + std::to_string(token) + " is not in the vocabulary");
}

// Names and types, looked up once when the module is imported, and never released.
struct Torch {
  PyObject *float32, *float64, *bfloat16, *int32, *int64, *boolean;
  PyObject *dtype, *is_cpu, *is_contiguous, *contiguous, *stride, *shape, *data_ptr;

  static Torch& get() {
    static Torch torch;
    return torch;
  }
  static void load() {
    const pybind11::object module = pybind11::module_::import("torch");
    Torch& own = get();
    const auto type = [&](const char* name) { return module.attr(name).cast<pybind11::object>(); };
    own.float32 = type("float32").release().ptr();
    own.float64 = type("float64").release().ptr();
    own.bfloat16 = type("bfloat16").release().ptr();
    own.int32 = type("int32").release().ptr();
    own.int64 = type("int64").release().ptr();
    own.boolean = type("bool").release().ptr();
    own.dtype = PyUnicode_InternFromString("dtype");
    own.is_cpu = PyUnicode_InternFromString("is_cpu");
    own.is_contiguous = PyUnicode_InternFromString("is_contiguous");
    own.contiguous = PyUnicode_InternFromString("contiguous");
    own.stride = PyUnicode_InternFromString("stride");
    own.shape = PyUnicode_InternFromString("shape");
    own.data_ptr = PyUnicode_InternFromString("data_ptr");
  }
  template <typename T>
  static PyObject* type_of() {
    if constexpr (std::is_same_v<T, float>) return get().float32;
    if constexpr (std::is_same_v<T, double>) return get().float64;
    if constexpr (std::is_same_v<T, Bfloat16>) return get().bfloat16;
    if constexpr (std::is_same_v<T, int32_t>) return get().int32;
    if constexpr (std::is_same_v<T, int64_t>) return get().int64;
    if constexpr (std::is_same_v<T, bool>) return get().boolean;
  }
};

}  // namespace specdec

namespace pybind11::detail {

template <typename T, int rank, bool strided_rows>
struct type_caster<specdec::Tensor<T, rank, strided_rows>> {
  using Value = specdec::Tensor<T, rank, strided_rows>;
  PYBIND11_TYPE_CASTER(Value, const_name("Tensor"));

  bool load(handle source, bool) {
    const specdec::Torch& torch = specdec::Torch::get();
    value.owner = reinterpret_borrow<object>(source);
    if (!is(torch.dtype, specdec::Torch::type_of<std::remove_const_t<T>>())) return false;
    if (!is(torch.is_cpu, Py_True)) return false;
    if (!call(torch.is_contiguous).is(handle(Py_True))) {
      if (!(strided_rows && has_dense_rows())) {
        if constexpr (!std::is_const_v<T>) return false;
        value.owner = call(torch.contiguous);
      }
    }
    const object shape = attribute(torch.shape);
    value.axes = int(PyTuple_GET_SIZE(shape.ptr()));
    if (rank == specdec::kAny ? value.axes > Value::kMost : value.axes != rank) return false;
    for (int axis = 0; axis < value.axes; ++axis)
      value.sizes[axis] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.ptr(), axis));
    if (strided_rows && value.axes) value.row_stride = stride_of(call(torch.stride), 0);
    value.data = static_cast<T*>(PyLong_AsVoidPtr(call(torch.data_ptr).ptr()));
    return !PyErr_Occurred();
  }

 private:
  object attribute(PyObject* name) const {
    PyObject* found = PyObject_GetAttr(value.owner.ptr(), name);
    if (!found) PyErr_Clear();  // not a tensor: pybind11 tries another overload or raises TypeError
    return reinterpret_steal<object>(found);
  }
  bool is(PyObject* name, PyObject* wanted) const { return attribute(name).ptr() == wanted; }
  object call(PyObject* name) const {
    PyObject* result = PyObject_CallMethodNoArgs(value.owner.ptr(), name);
    if (!result) throw error_already_set();
    return reinterpret_steal<object>(result);
  }
  static int64_t stride_of(const object& strides, int axis) {
    return PyLong_AsLongLong(PyTuple_GET_ITEM(strides.ptr(), axis));
  }
  // True if all axes but the first are contiguous.
  bool has_dense_rows() const {
    const object shape = attribute(specdec::Torch::get().shape);
    const object strides = call(specdec::Torch::get().stride);
    int64_t dense = 1;
    for (int axis = int(PyTuple_GET_SIZE(shape.ptr())) - 1; axis > 0; --axis) {
      const int64_t size = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.ptr(), axis));
      if (size > 1 && stride_of(strides, axis) != dense) return false;
      dense *= size;
    }
    return true;
  }
};

}  // namespace pybind11::detail
