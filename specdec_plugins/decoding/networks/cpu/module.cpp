// The kernels as a Python module, which ops.py and products.py call.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "logits.h"
#include "passes.h"
#include "python.h"

namespace pybind11::detail {
using namespace specdec;

template <>
struct type_caster<Ragged> : parts_caster<Ragged, Integers<2>, Integers<1>> {};
template <>
struct type_caster<Opened>
    : parts_caster<Opened, Tensor<int64_t, 2>, Tensor<int64_t, 1>, Tensor<float, 4>> {};
template <>
struct type_caster<Tables> : parts_caster<Tables, Floats<2>, float, Floats<2>, int64_t, int64_t> {};
template <>
struct type_caster<Verdict> : parts_caster<Verdict, Integers<1>, Integers<1>> {};
template <>
struct type_caster<Prefix>
    : parts_caster<Prefix, Tensor<int64_t, 2>, Tensor<int64_t, 1>, Tensor<bool, 1>> {};
template <>
struct type_caster<Extension>
    : parts_caster<Extension, Tensor<int64_t, 2>, Tensor<int64_t, 1>, Tensor<int64_t, 1>,
                   Tensor<bool, 1>, Tensor<bool, 1>> {};
template <>
struct type_caster<Bigrams>
    : parts_caster<Bigrams, Types, Types, Floats<1>, Floats<1>, Floats<1>> {};
template <>
struct type_caster<NormTensors> : parts_caster<NormTensors, Floats<1>, Floats<1>, float> {};
template <>
struct type_caster<Inputs>
    : parts_caster<Inputs, Floats<3>, std::optional<Floats<3>>, std::optional<Integers<2>>> {};
template <>
struct type_caster<Seen> : parts_caster<Seen, std::optional<Floats<4>>, std::optional<Storage>,
                                        std::optional<Integers<1>>> {};
template <>
struct type_caster<Span> : parts_caster<Span, int, int> {};
template <>
struct type_caster<Cached> : parts_caster<Cached, Integers<1>, Storage, int> {};
template <>
struct type_caster<Blocks>
    : parts_caster<Blocks, Floats<3>, std::optional<Floats<3>>,
                   std::vector<std::shared_ptr<PackedWeights>>, Integers<1>, Floats<2>> {};
template <>
struct type_caster<Drafted> : parts_caster<Drafted, Tensor<int64_t, 2>, Tensor<float, 2>> {};

}  // namespace pybind11::detail

#define STRING_(x) #x
#define STRING(x) STRING_(x)

PYBIND11_MODULE(_kernels, module) {
  namespace py = pybind11;
  using namespace specdec;
  const auto arg = [](const char* name) { return py::arg(name); };
  // For what computes long enough: other Python threads go on.
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  using Packed = std::shared_ptr<PackedWeights>;

  module.doc() = "Kernels whose result for a row depends on that row alone.";
  module.attr("sources") = STRING(SOURCES);  // their hash: setup.py
  module.def("instruction_sets", [] {
    std::vector<std::string> found;
    for (const Isa* isa : usable()) found.emplace_back(isa->name);
    return found;
  });
  Torch::load();
  module.def("best", &best, arg("logits"), arg("out"), arg("threads"), Unlocked());
  module.def("log_total", &log_total, arg("logits"), arg("out"), arg("threads"), Unlocked());
  module.def("largest", &largest, arg("logits"), arg("scores"), arg("tokens"), arg("threads"),
             Unlocked());
  module.def("rank", &specdec::rank, arg("logits"), arg("tokens"), arg("out"), arg("threads"),
             Unlocked());
  module.def("leading_best", &leading_best, arg("logits"), arg("draft"), arg("num_kept"),
             arg("behind"), arg("threads"), Unlocked());
  module.def("failed", &failed, arg("logits"), arg("columns"), arg("active"), arg("out"));
  module.def("leading_log_prob", &leading_log_prob, arg("logits"), arg("counted"), arg("sums"),
             arg("threads"), Unlocked());
  module.def("best_paths", &best_paths, arg("logits"), arg("before"), arg("bigrams"),
             arg("weight"), arg("candidates"), arg("paths"), arg("threads"), Unlocked());
  module.def("embed", &embed, arg("tokens"), arg("positions"), arg("tables"), arg("out"));
  module.def("list_types", &list_types, arg("source_ids"), arg("starts"), arg("types"),
             arg("common"), arg("out"));
  module.def("open_window", &open_window, arg("lengths"), arg("last_seen"), arg("skip"),
             arg("capacity"), arg("out"));
  module.def("extend", &extend, arg("draft"), arg("verdict"), arg("max_len"), arg("eos"),
             arg("prefix"), arg("out"));
  module.def("scored_tokens", &scored_tokens, arg("prefix"), arg("draft"), arg("pad"), arg("out"));
  py::class_<PackedWeights, Packed>(module, "PackedWeights")
      .def(py::init<const Floats<2>&, const std::optional<Floats<1>>&, bool, const std::string&>(),
           arg("weight"), arg("bias"), arg("int8"), arg("instruction_set"))
      .def_property_readonly("bits", &PackedWeights::bits)
      .def("multiply",
           [](const PackedWeights& own, const Folded<const float, 2>& x,
              const Folded<float, 2>& out, int threads) { own.multiply(x, out, threads); },
           arg("x"), arg("out"), arg("threads"), Unlocked());
  py::class_<Choices>(module, "Choices")
      .def(py::init<Floats<2>, const PackedWeights&>(), arg("weight"), arg("like"))
      .def("pick", &Choices::pick, arg("outputs"));
  py::class_<Source>(module, "Source")
      .def(py::init<std::vector<Rows<5>>, std::optional<Floats<4>>, std::vector<Rows<3>>>(),
           arg("layers"), arg("mask"), arg("copied"));
  py::class_<Stack, std::shared_ptr<Stack>>(module, "Stack")
      .def(py::init<int, int, int>(), arg("dim"), arg("heads"), arg("ffn"))
      .def("add", &Stack::add, arg("products"), arg("norms"), arg("norm_before"),
           arg("activation"))
      .def("run", &Stack::run, arg("inputs"), arg("seen"), arg("source"), arg("span"), arg("out"),
           arg("threads"), Unlocked());
  py::class_<Head, std::shared_ptr<Head>>(module, "Head")
      .def(py::init<Tensor<const Bfloat16, 2>, Packed, Packed, Packed, int>(), arg("table"),
           arg("state"), arg("out"), arg("context"), arg("heads"));
  module.def("walk_blocks", &walk_blocks, arg("blocks"), arg("head"), arg("source"),
             arg("candidates"), arg("drafted"), arg("threads"), Unlocked());
  py::class_<Scorer>(module, "Scorer")
      .def(py::init<Tables, std::shared_ptr<Stack>, Packed>(), arg("tables"), arg("stack"),
           arg("output"))
      .def("score", &Scorer::score, arg("prefix"), arg("draft"), arg("pad"), arg("cached"),
           arg("source"), arg("states"), arg("logits"), arg("threads"), Unlocked());
  py::class_<BlockDrafter>(module, "BlockDrafter")
      .def(py::init<Tables, std::shared_ptr<Stack>, int64_t, int64_t, std::optional<Floats<2>>,
                    std::shared_ptr<Head>>(),
           arg("tables"), arg("stack"), arg("mask"), arg("pad"), arg("queries"), arg("head"))
      .def("read", &BlockDrafter::read, arg("prefix"), arg("cached"), arg("num_masks"),
           arg("source"), arg("states"), arg("threads"), Unlocked())
      .def("draft", &BlockDrafter::draft, arg("prefix"), arg("cached"), arg("num_masks"),
           arg("budget"), arg("eos"), arg("source"), arg("lists"), arg("candidates"),
           arg("drafted"), arg("lengths"), arg("threads"), Unlocked());
}
