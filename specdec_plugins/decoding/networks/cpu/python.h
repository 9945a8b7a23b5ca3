// Tensors from Python: their type, rank and device are checked, and they are read in place.
//
// This reads a few attributes of the Python object, which costs a fraction of a microsecond;
// linking torch instead would tie a build to one version of it.

#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tensor.h"

namespace specdec {

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

// A tensor that is not dense is copied where it is only read, and refused where it is written.
template <typename Value, typename T, int rank, bool strided_rows, bool folded>
struct tensor_caster {
  PYBIND11_TYPE_CASTER(Value, const_name("Tensor"));

  bool load(handle source, bool) {
    const specdec::Torch& torch = specdec::Torch::get();
    tensor_ = reinterpret_borrow<object>(source);
    if (!is(torch.dtype, specdec::Torch::type_of<std::remove_const_t<T>>())) return false;
    if (!is(torch.is_cpu, Py_True)) return false;
    if (!call(torch.is_contiguous).is(handle(Py_True))) {
      if (!(strided_rows && has_dense_rows())) {
        if constexpr (!std::is_const_v<T>) return false;
        tensor_ = call(torch.contiguous);
      }
    }
    const object shape = attribute(torch.shape);
    const int axes = int(PyTuple_GET_SIZE(shape.ptr())), leading = axes - rank;
    if (folded ? leading < 0 : leading != 0) return false;
    int64_t first = 1;
    for (int axis = 0; axis < axes; ++axis) {
      const int64_t size = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.ptr(), axis));
      if (axis <= leading) first *= size;
      value.sizes[std::max(axis - leading, 0)] = axis <= leading ? first : size;
    }
    if (strided_rows) value.row_stride = stride_of(call(torch.stride), 0);
    value.data = static_cast<T*>(PyLong_AsVoidPtr(call(torch.data_ptr).ptr()));
    // Released when Python's lock is held: with the arguments of a call, or with an object.
    value.owner = {tensor_.inc_ref().ptr(), [](const void* own) {
                     handle(static_cast<PyObject*>(const_cast<void*>(own))).dec_ref();
                   }};
    return !PyErr_Occurred();
  }

 private:
  object tensor_;

  object attribute(PyObject* name) const {
    PyObject* found = PyObject_GetAttr(tensor_.ptr(), name);
    if (!found) PyErr_Clear();  // not a tensor: pybind11 tries another overload or raises TypeError
    return reinterpret_steal<object>(found);
  }
  bool is(PyObject* name, PyObject* wanted) const { return attribute(name).ptr() == wanted; }
  object call(PyObject* name) const {
    PyObject* result = PyObject_CallMethodNoArgs(tensor_.ptr(), name);
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

template <typename T, int rank, bool strided_rows>
struct type_caster<specdec::Tensor<T, rank, strided_rows>>
    : tensor_caster<specdec::Tensor<T, rank, strided_rows>, T, rank, strided_rows, false> {};

template <typename T, int rank>
struct type_caster<specdec::Folded<T, rank>>
    : tensor_caster<specdec::Folded<T, rank>, T, rank, false, true> {};

// Structures from tuples of their parts.
template <typename Value, typename... Parts>
struct parts_caster {
  PYBIND11_TYPE_CASTER(Value, const_name("tuple"));

  bool load(handle source, bool convert) {
    make_caster<std::tuple<Parts...>> parts;
    if (!parts.load(source, convert)) return false;
    value = std::apply([](auto&&... own) { return Value{std::move(own)...}; },
                       cast_op<std::tuple<Parts...>>(std::move(parts)));
    return true;
  }
};

}  // namespace pybind11::detail
