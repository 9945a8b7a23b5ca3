// The kernels as a Python module. Tensors come as addresses; native.py checks and keeps them.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "isa.h"
#include "packed.h"
#include "paths.h"
#include "rounds.h"
#include "stack.h"
#include "team.h"

namespace specdec {

#define STRING_(x) #x
#define STRING(x) STRING_(x)

// No instruction set in particular: what the compiler takes for granted.
#define ISA plain
#define LANES 4
#define VECTORS 2
#define HAS_INT8 0
#include "kernels.inc"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WITH_X86 1
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define ISA avx2
#define LANES 8
#define VECTORS 2
#define HAS_INT8 0
#include "kernels.inc"
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")
#define ISA avx512
#define LANES 16
#define VECTORS 4
#define HAS_INT8 1
#include "kernels.inc"
#pragma GCC pop_options
#else
#define WITH_X86 0
#endif

std::vector<const Isa*> usable() {
  std::vector<const Isa*> found;
#if WITH_X86
  if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    found.push_back(&avx512::isa);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    found.push_back(&avx2::isa);
#endif
  found.push_back(&plain::isa);
  return found;
}

// Calls work(row) for every row, shared out to the threads.
template <typename Work>
static void for_rows(int rows, int threads, const Work& work) {
  in_team(std::min(rows, threads), [&](int thread, int team) {
    for (int row = rows * thread / team; row < rows * (thread + 1) / team; ++row) work(row);
  });
}

// Found once: it is asked for in every round.
static const Isa& best_isa() {
  static const Isa& isa = isa_of("");
  return isa;
}

static void best(uintptr_t logits, int rows, int width, uintptr_t result, int threads) {
  const Isa& isa = best_isa();
  for_rows(rows, threads, [&](int row) {
    reinterpret_cast<int64_t*>(result)[row] =
        isa.best_of(at_address<float>(logits) + int64_t(row) * width, width);
  });
}

static void log_total(uintptr_t logits, int rows, int width, uintptr_t result, int threads) {
  const Isa& isa = best_isa();
  for_rows(rows, threads, [&](int row) {
    reinterpret_cast<float*>(result)[row] =
        isa.log_total_of(at_address<float>(logits) + int64_t(row) * width, width);
  });
}

static void rank(uintptr_t logits, int rows, int width, uintptr_t tokens, uintptr_t result,
                 int threads) {
  const Isa& isa = best_isa();
  for_rows(rows, threads, [&](int row) {
    reinterpret_cast<int64_t*>(result)[row] =
        isa.rank_of(at_address<float>(logits) + int64_t(row) * width, width,
                    at_address<int64_t>(tokens)[row]);
  });
}

static void accept(uintptr_t logits, int rows, int drafted, int width, uintptr_t tokens,
                   uintptr_t lengths, uintptr_t accepted, uintptr_t next, int threads) {
  const Isa& isa = best_isa();
  for_rows(rows, threads, [&](int row) {
    accept_best(row, at_address<float>(logits), drafted, width, at_address<int64_t>(tokens),
                at_address<int64_t>(lengths), reinterpret_cast<int64_t*>(accepted),
                reinterpret_cast<int64_t*>(next), isa.best_of);
  });
}

static void log_probs(uintptr_t logits, int rows, int columns, int width, uintptr_t tokens,
                      uintptr_t lengths, uintptr_t sums, int threads) {
  const Isa& isa = best_isa();
  for_rows(rows, threads, [&](int row) {
    reinterpret_cast<double*>(sums)[row] =
        emitted_log_prob(row, at_address<float>(logits), columns, width,
                         at_address<int64_t>(tokens), at_address<int64_t>(lengths),
                         isa.log_total_of);
  });
}

static void best_paths(uintptr_t logits, int rows, int length, int width, uintptr_t before,
                       uintptr_t starts, uintptr_t tokens, uintptr_t log_probs, uintptr_t backoffs,
                       uintptr_t frequencies, float weight, int count, uintptr_t paths,
                       int threads) {
  const Bigrams bigrams{at_address<int32_t>(starts), at_address<int32_t>(tokens),
                        at_address<float>(log_probs), at_address<float>(backoffs),
                        at_address<float>(frequencies)};
  for_rows(rows, threads, [&](int row) {
    best_path(at_address<float>(logits) + int64_t(row) * length * width, length, width,
              at_address<int64_t>(before)[row], bigrams, weight, count,
              reinterpret_cast<int64_t*>(paths) + int64_t(row) * length);
  });
}

}  // namespace specdec

PYBIND11_MODULE(_native, module) {
  namespace py = pybind11;
  using namespace specdec;
  module.doc() = "Kernels whose result for a row depends on that row alone.";
  module.def("instruction_sets", [] {
    std::vector<std::pair<std::string, bool>> found;
    for (const Isa* isa : usable()) found.emplace_back(isa->name, isa->has_int8);
    return found;
  });
  module.def("best", &best);
  module.def("log_total", &log_total);
  module.def("rank", &rank);
  module.def("accept_best", &accept);
  module.def("emitted_log_probs", &log_probs);
  module.def("open_window", &open_window);
  module.def("best_paths", &best_paths);
  module.def("embed", &embed);
  module.def("open_block", &open_block);
  module.def("extend", &extend_rows);
  py::class_<PackedWeights, std::shared_ptr<PackedWeights>>(module, "PackedWeights")
      .def(py::init<uintptr_t, uintptr_t, int, int, bool, const std::string&>())
      .def("multiply", &PackedWeights::multiply);
  py::class_<Stack>(module, "Stack")
      .def(py::init<int, int, int>())
      .def("add", &Stack::add)
      .def("run", &Stack::run);
}
