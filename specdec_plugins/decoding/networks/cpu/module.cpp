// The kernels as a Python module, which ops.py and products.py call. Tensors from Python: their type,
// rank and device are checked, and they are read in place.
//
// This reads a few attributes of the Python object, which costs a fraction of a microsecond;
// linking torch instead would tie a build to one version of it.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <tuple>
#include <type_traits>

#include "lane.h"
#include "search.h"

namespace specdec {

// Names and types, looked up once when the module is imported, and never released.
struct Torch {
  PyObject *float32 = type("float32"), *bfloat16 = type("bfloat16");
  PyObject *int32 = type("int32"), *int64 = type("int64");
  PyObject *dtype = name("dtype"), *is_cpu = name("is_cpu"), *shape = name("shape");
  PyObject *is_contiguous = name("is_contiguous"), *contiguous = name("contiguous");
  PyObject *stride = name("stride"), *data_ptr = name("data_ptr");

  static const Torch& get() {
    static const Torch torch;
    return torch;
  }
  template <typename T>
  static PyObject* type_of() {
    if constexpr (std::is_same_v<T, float>) return get().float32;
    if constexpr (std::is_same_v<T, Bfloat16>) return get().bfloat16;
    if constexpr (std::is_same_v<T, int32_t>) return get().int32;
    if constexpr (std::is_same_v<T, int64_t>) return get().int64;
  }

 private:
  static PyObject* type(const char* name) {
    return pybind11::module_::import("torch").attr(name).cast<pybind11::object>().release().ptr();
  }
  static PyObject* name(const char* own) { return PyUnicode_InternFromString(own); }
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
    if (!call(torch.is_contiguous).is(handle(Py_True)) && !(strided_rows && has_dense_rows())) {
      if constexpr (!std::is_const_v<T>) return false;
      tensor_ = call(torch.contiguous);
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

using namespace specdec;

// A table is a tensor, or what it was packed into.
template <>
struct type_caster<Table> {
  PYBIND11_TYPE_CASTER(Table, const_name("Table"));

  bool load(handle source, bool convert) {
    make_caster<Packed> packed;
    if (packed.load(source, false)) {
      value.packed = cast_op<Packed>(packed);
      check(value.packed->linear.codes, "a packed table has 8 bits");
      return true;
    }
    make_caster<Floats<2>> floats;
    if (!floats.load(source, convert)) return false;
    value.floats = cast_op<Floats<2>>(std::move(floats));
    return true;
  }
};

#define FROM_TUPLE(Value, ...) \
  template <>                  \
  struct type_caster<Value> : parts_caster<Value, __VA_ARGS__> {}

FROM_TUPLE(Tables, Table, float, Floats<2>, int64_t, int64_t);
FROM_TUPLE(NormTensors, Floats<1>, std::optional<Floats<1>>, float);
FROM_TUPLE(Switches, bool, bool, bool, std::string, std::optional<Floats<2>>);
FROM_TUPLE(Inputs, Floats<3>, std::optional<Floats<3>>, std::optional<Integers<2>>);
FROM_TUPLE(Seen, std::optional<Floats<4>>, std::optional<Storage>, std::optional<Integers<1>>,
           std::optional<Integers<3>>);
FROM_TUPLE(Span, int, int);
FROM_TUPLE(Blocks, Floats<3>, std::optional<Floats<3>>, std::vector<Packed>, Integers<1>, Table);
FROM_TUPLE(Reader, Tables, std::optional<NormTensors>, std::optional<NormTensors>,
           std::shared_ptr<Stack>);
FROM_TUPLE(Drawing, float, int64_t, float, int64_t);
FROM_TUPLE(Rules, int64_t, bool, bool, int64_t, std::vector<std::vector<int64_t>>,
           std::vector<int64_t>, int64_t, int64_t);
FROM_TUPLE(Shortlists, Types, Types, Types, std::shared_ptr<Choices>);
FROM_TUPLE(Asked, std::vector<int64_t>, std::vector<int64_t>, int64_t, int64_t, int64_t, int64_t,
           float, std::vector<int64_t>, bool, bool, int64_t, float, Drawing);
FROM_TUPLE(SearchOptions, std::vector<int64_t>, int64_t, int64_t, int64_t, int64_t, double, float,
           int, int64_t);
FROM_TUPLE(Drafted, Tensor<int64_t, 2>, Tensor<float, 2>);

}  // namespace pybind11::detail

PYBIND11_MODULE(_kernels, module) {
  namespace py = pybind11;
  using namespace specdec;
  using py::arg;
  // For what computes long enough: other Python threads go on.
  using Unlocked = py::call_guard<py::gil_scoped_release>;

  module.doc() = "Kernels whose result for a row depends on that row alone.";
  module.attr("sources") = STRING(SOURCES);  // their hash: setup.py
  module.def("instruction_sets", [] {
    std::vector<std::string> found;
    for (const Isa* isa : usable()) found.emplace_back(isa->name);
    return found;
  });
  Torch::get();
  module.def("best",
             [](const Folded<const float, 2>& logits, const Folded<int64_t, 1>& out, int threads) {
               each_row(logits, out, threads, [of = best_isa().best_of](const float* row, int width) {
                 return of(row, width).token;
               });
             },
             arg("logits"), arg("out"), arg("threads"), Unlocked());
  module.def("log_total",
             [](const Folded<const float, 2>& logits, const Folded<float, 1>& out, int threads) {
               each_row(logits, out, threads, best_isa().log_total_of);
             },
             arg("logits"), arg("out"), arg("threads"), Unlocked());
  module.def("largest", &largest, arg("logits"), arg("scores"), arg("tokens"), arg("threads"),
             Unlocked());
  module.def("normalise", &normalise, arg("norm"), arg("x"), arg("out"), arg("threads"),
             Unlocked());
  py::class_<PackedWeights, Packed>(module, "PackedWeights")
      .def(py::init<const Floats<2>&, const std::optional<Floats<1>>&, bool, const std::string&>(),
           arg("weight"), arg("bias"), arg("int8"), arg("instruction_set"))
      .def(py::init<const PackedWeights&, const Floats<1>&>(), arg("other"), arg("bias"))
      .def("rows",  // [M, in] of 8 bits
           [](const PackedWeights& own, const Integers<1>& tokens, const Tensor<float, 2>& out) {
             check_same("width", own.linear.in, out.size(1));
             check_same("rows", tokens.count(), out.size(0));
             for (int64_t i = 0; i < tokens.count(); ++i) {
               check_token(tokens.data[i], own.linear.out);
               unpack(own.linear, own.isa.panel, tokens.data[i], out.data + i * out.size(1));
             }
           },
           arg("tokens"), arg("out"), Unlocked())
      .def_property_readonly("bits", &PackedWeights::bits)
      .def_property_readonly("adds_integers",
                             [](const PackedWeights& own) { return own.linear.digits > 0; })
      .def("multiply",
           [](const PackedWeights& own, const Folded<const float, 2>& x,
              const Folded<float, 2>& out, int threads) { own.multiply(x, out, threads); },
           arg("x"), arg("out"), arg("threads"), Unlocked());
  py::class_<Choices, std::shared_ptr<Choices>>(module, "Choices")
      .def(py::init<Table, const PackedWeights&>(), arg("weight"), arg("like"))
      .def("pick", &Choices::pick, arg("outputs"));
  py::class_<Source>(module, "Source")
      .def(py::init<std::vector<Rows<5>>, std::optional<Floats<4>>, std::vector<Rows<3>>>(),
           arg("layers"), arg("mask"), arg("copied"));
  py::class_<Stack, std::shared_ptr<Stack>>(module, "Stack")
      .def(py::init<int, int, int, int>(), arg("dim"), arg("attention"), arg("heads"), arg("ffn"))
      .def("add", &Stack::add, arg("products"), arg("norms"), arg("switches"))
      .def("run", &Stack::run, arg("inputs"), arg("seen"), arg("source"), arg("span"), arg("out"),
           arg("threads"), Unlocked());
  py::class_<Head, std::shared_ptr<Head>>(module, "Head")
      .def(py::init<Tensor<const Bfloat16, 2>, Packed, Packed, Packed, int>(), arg("table"),
           arg("state"), arg("out"), arg("context"), arg("heads"));
  module.def("walk_blocks",
             [](const Blocks& blocks, const Head& head, const Source* source, int candidates,
                const Drafted& drafted, int threads) {
               const auto sources = read_by(head, source, blocks.states.size(0));
               walk_blocks(blocks, head, sources, candidates, drafted, threads);
             },
             arg("blocks"), arg("head"), arg("source"), arg("candidates"), arg("drafted"),
             arg("threads"), Unlocked());
  py::class_<BlockDrafter, std::shared_ptr<BlockDrafter>>(module, "BlockDrafter")
      .def(py::init<Tables, std::shared_ptr<Stack>, int64_t, std::optional<Floats<2>>,
                    std::shared_ptr<Head>>(),
           arg("tables"), arg("stack"), arg("mask"), arg("queries"), arg("head"))
      .def("embed", &BlockDrafter::embed, arg("tokens"), arg("positions"), arg("source"),
           arg("out"), arg("places"), Unlocked());
  py::class_<Verifying, std::shared_ptr<Verifying>>(module, "Verifying")
      .def(py::init<Reader, Reader, std::vector<Packed>, Packed>(), arg("encoder"), arg("decoder"),
           arg("keys_values"), arg("output"));
  py::class_<Drafting, std::shared_ptr<Drafting>>(module, "Drafting")
      .def(py::init<std::shared_ptr<BlockDrafter>, Reader, std::vector<Packed>, Packed, bool, int64_t,
                    int64_t, int64_t>(),
           arg("network"), arg("encoder"), arg("keys_values"), arg("output"), arg("keeps_prefix"),
           arg("pad"), arg("longest"), arg("max_positions"));
  py::class_<Heads, std::shared_ptr<Heads>>(module, "Heads")
      .def(py::init<Packed>(), arg("blocks"))
      .def("read", &Heads::read, arg("last"), arg("out"), arg("threads"), Unlocked());
  py::class_<Searches>(module, "Searches")
      .def(py::init<std::shared_ptr<Verifying>, int64_t, int64_t, std::vector<int64_t>>(),
           arg("verifier"), arg("eos"), arg("unk"), arg("banned"))
      .def("admit", &Searches::admit, arg("sources"), arg("asked"), arg("threads"), Unlocked())
      .def("select", &Searches::select, arg("kept"))
      .def("stop", &Searches::stop, arg("row"))
      .def("run", &Searches::run, arg("most"), arg("threads"), Unlocked())
      .def("steps", [](const Searches& own, int row) { return own.of(row).steps; }, arg("row"))
      .def("results",
           [](const Searches& own, int row) {
             std::vector<std::tuple<std::vector<int64_t>, double, std::vector<double>>> told;
             for (const Emitted& one : own.of(row).results)
               told.emplace_back(one.tokens, one.score, one.log_probs);
             return told;
           },
           arg("row"));
  py::class_<Drafter, std::shared_ptr<Drafter>>(module, "Drafter");
  py::class_<BlockNatDrafter, Drafter, std::shared_ptr<BlockNatDrafter>>(module, "BlockNatDrafter")
      .def(py::init<std::shared_ptr<Drafting>, std::optional<Shortlists>, bool, int, float, bool,
                    int64_t>(),
           arg("weights"), arg("lists"), arg("shares_encoder"), arg("candidates"), arg("confidence"),
           arg("cuts_all"), arg("eos"));
  py::class_<LookupDrafter, Drafter, std::shared_ptr<LookupDrafter>>(module, "LookupDrafter")
      .def(py::init<std::vector<int64_t>, int64_t, int64_t>(), arg("to_target"), arg("least"),
           arg("most"));
  py::class_<EarlyExitDrafter, Drafter, std::shared_ptr<EarlyExitDrafter>>(module, "EarlyExitDrafter")
      .def(py::init<std::shared_ptr<Verifying>, int, float, int64_t>(), arg("verifier"),
           arg("layers"), arg("least"), arg("eos"));
  py::class_<MedusaDrafter, Drafter, std::shared_ptr<MedusaDrafter>>(module, "MedusaDrafter")
      .def(py::init<std::shared_ptr<Verifying>, std::shared_ptr<Heads>, int64_t>(), arg("verifier"),
           arg("heads"), arg("eos"));
  py::class_<Lane>(module, "Lane")
      .def(py::init<std::shared_ptr<Verifying>, std::shared_ptr<Drafter>, Rules>(), arg("verifier"),
           arg("drafter"), arg("rules"))
      .def_readwrite("seconds", &Lane::seconds)
      .def("admit", &Lane::admit, arg("joining"), arg("threads"), Unlocked())
      .def("select", &Lane::select, arg("kept"))
      .def("stop", &Lane::stop, arg("row"))
      .def("run",
           [](Lane& own, int most, int threads) {
             std::vector<Report> reports;
             {
               const py::gil_scoped_release unlocked;
               reports = own.run(most, threads);
             }
             std::vector<py::tuple> told;
             for (Report& of : reports)
               told.push_back(py::make_tuple(of.row, std::move(of.drafted), std::move(of.emitted),
                                             of.accepted, of.ending, std::move(of.log_probs),
                                             of.length));
             return told;
           },
           arg("most"), arg("threads"));
}
