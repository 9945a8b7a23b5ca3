// The kernels as a Python module, which ops.py and products.py call.

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "isa.h"
#include "rounds.h"
#include "stack.h"
#include "tensor.h"

namespace specdec {

#define STRING_(x) #x
#define STRING(x) STRING_(x)

// The baseline: no instruction set beyond what the compiler assumes.
#define ISA plain
#define LANES 4
#define VECTORS 2
#define HAS_HALF 0
#include "kernels.inc"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WITH_X86 1
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define ISA avx2
#define LANES 8
#define VECTORS 2
#define HAS_HALF 1
#define WITH_MADDUBS
#include "kernels.inc"
#pragma GCC pop_options

#if __GNUC__ >= 11
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avxvnni")
#define ISA avxvnni
#define LANES 8
#define VECTORS 2
#define HAS_HALF 1
#define DPBUSD(sums, x, w) ints(_mm256_dpbusd_avx_epi32(__m256i(sums), __m256i(x), __m256i(w)))
#include "kernels.inc"
#pragma GCC pop_options
#endif

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")
#define ISA avx512
#define LANES 16
#define VECTORS 4
#define HAS_HALF 1
#define DPBUSD(sums, x, w) ints(_mm512_dpbusd_epi32(__m512i(sums), __m512i(x), __m512i(w)))
#include "kernels.inc"
#pragma GCC pop_options

#if defined(__linux__) && __GNUC__ >= 11
#define WITH_MATRICES 1
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")
#pragma GCC target("amx-tile,amx-int8")
#define ISA amx
#define LANES 16
#define VECTORS 4
#define HAS_HALF 1
#define WITH_AMX
#define DPBUSD(sums, x, w) ints(_mm512_dpbusd_epi32(__m512i(sums), __m512i(x), __m512i(w)))
#include "kernels.inc"
#pragma GCC pop_options

// A process must ask the system for the registers of the matrix unit.
static bool may_use_matrices() {
  constexpr int kRequest = 0x1023, kTiles = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return __builtin_cpu_supports("amx-int8") && syscall(SYS_arch_prctl, kRequest, kTiles) == 0;
}
#endif
#else
#define WITH_X86 0
#endif

std::vector<const Isa*> usable() {
  std::vector<const Isa*> found;
#if WITH_X86
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  const bool has_avx512 =
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#if WITH_MATRICES
  if (has_avx512 && may_use_matrices()) found.push_back(&amx::isa);
#endif
  if (has_avx512) found.push_back(&avx512::isa);
#if __GNUC__ >= 11
  if (has_avx2 && __builtin_cpu_supports("avxvnni")) found.push_back(&avxvnni::isa);
#endif
  if (has_avx2) found.push_back(&avx2::isa);
#endif
  found.push_back(&plain::isa);
  const char* wanted = std::getenv("SPECDEC_INSTRUCTION_SET");
  if (wanted && *wanted) {
    const auto named = [&](const Isa* isa) { return !std::strcmp(isa->name, wanted); };
    const auto at = std::find_if(found.begin(), found.end(), named);
    if (at == found.end())
      throw std::invalid_argument(std::string("SPECDEC_INSTRUCTION_SET: this processor cannot run ") +
                                  wanted);
    std::rotate(found.begin(), at, at + 1);
  }
  return found;
}

// Looked up once, as every round needs it.
static const Isa& best_isa() {
  static const Isa& isa = isa_of("");
  return isa;
}

// Calls work(row) for every row, distributed over the threads. What it throws is thrown to the
// caller, as no exception may leave a thread of a team.
template <typename Work>
static void for_rows(int64_t rows, int threads, const Work& work) {
  std::exception_ptr failure;
  std::mutex mutex;
  in_team(int(std::min<int64_t>(rows, threads)), [&](int thread, int team) {
    try {
      for (int64_t row = rows * thread / team; row < rows * (thread + 1) / team; ++row) work(row);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

// The width of logits with an entry in `out` for each row: for all but their last axis.
template <typename T>
static int width_of(const Floats<kAny>& logits, const Tensor<T, kAny>& out) {
  check(logits.axes == out.axes + 1 && logits.size(-1) > 0, "logits need an axis more, of types");
  for (int axis = 0; axis < out.axes; ++axis) check_same("rows", logits.size(axis), out.size(axis));
  return int(logits.size(-1));
}

static void best(const Floats<kAny>& logits, const Tensor<int64_t, kAny>& out, int threads) {
  const int width = width_of(logits, out);
  const auto best_of = best_isa().best_of;
  for_rows(out.count(), threads, [&](int64_t row) {
    out.data[row] = best_of(logits.data + row * width, width);
  });
}

static void log_total(const Floats<kAny>& logits, const Tensor<float, kAny>& out, int threads) {
  const int width = width_of(logits, out);
  const auto log_total_of = best_isa().log_total_of;
  for_rows(out.count(), threads, [&](int64_t row) {
    out.data[row] = log_total_of(logits.data + row * width, width);
  });
}

// The largest of each row, the best first, of equal ones the first.
static void largest(const Floats<2>& logits, const Tensor<float, 2>& scores,
                    const Tensor<int64_t, 2>& tokens, int threads) {
  const int width = int(logits.size(1)), count = int(scores.size(1));
  check_same("rows", logits.size(0), scores.size(0), tokens.size(0));
  check_same("candidates", count, tokens.size(1));
  check(0 < count && count <= width, "there are fewer types than candidates");
  const auto largest_of = best_isa().largest_of;
  for_rows(logits.size(0), threads, [&](int64_t row) {
    std::vector<Candidate> found(count);
    largest_of(logits.data + row * width, width, count, found.data());
    for (int i = 0; i < count; ++i) {
      scores.data[row * count + i] = found[i].score;
      tokens.data[row * count + i] = found[i].token;
    }
  });
}

static void rank(const Floats<kAny>& logits, const Integers<kAny>& tokens,
                 const Tensor<int64_t, kAny>& out, int threads) {
  const int width = width_of(logits, out);
  check_same("rows", out.count(), tokens.count());
  const auto rank_of = best_isa().rank_of;
  for_rows(out.count(), threads, [&](int64_t row) {
    check_token(tokens.data[row], width);
    out.data[row] = rank_of(logits.data + row * width, width, tokens.data[row]);
  });
}

// Reads the logits of a row only up to the first mismatch with its draft.
static void leading_best(const Floats<3>& logits, const Integers<2>& drafted,
                         const Integers<1>& lengths, const Tensor<int64_t, 1>& num_kept,
                         const Tensor<int64_t, 1>& behind, int threads) {
  const int64_t drafts = drafted.size(1), columns = drafts + 1;
  const int width = int(logits.size(2));
  check_same("rows", logits.size(0), drafted.size(0), lengths.size(0), num_kept.size(0),
             behind.size(0));
  check_same("columns", columns, logits.size(1));
  check(width > 0, "there are no types");
  const auto best_of = best_isa().best_of;
  for_rows(num_kept.count(), threads, [&](int64_t row) {
    const int64_t length = std::min(lengths.data[row], drafts);
    int64_t kept = 0, own = 0;
    for (;; ++kept) {
      own = best_of(logits.data + (row * columns + kept) * width, width);
      if (kept >= length || drafted.data[row * drafts + kept] != own) break;
    }
    num_kept.data[row] = kept;
    behind.data[row] = own;
  });
}

// Which active rows fail: the largest of their logits at `columns` [B] is not finite.
static void failed(const Floats<3>& logits, const Integers<1>& columns,
                   const Tensor<const bool, 1>& active, const Tensor<bool, 1>& out) {
  const int64_t length = logits.size(1), width = logits.size(2);
  check_same("rows", logits.size(0), columns.size(0), active.size(0), out.size(0));
  check(length > 0, "there are no columns");
  for (int64_t row = 0; row < out.count(); ++row) {
    const int64_t column = std::clamp<int64_t>(columns.data[row], 0, length - 1);
    const float* own = logits.data + (row * length + column) * width;
    out.data[row] = active.data[row] && !are_numbers(own, width);
  }
}

static void leading_log_prob(const Floats<3>& logits, const Integers<2>& tokens,
                             const Integers<1>& lengths, const Tensor<double, 1>& sums,
                             int threads) {
  const int64_t columns = logits.size(1);
  const int width = int(logits.size(2));
  check_same("rows", logits.size(0), tokens.size(0), lengths.size(0), sums.size(0));
  check_same("columns", columns, tokens.size(1));
  const auto log_total_of = best_isa().log_total_of;
  for_rows(sums.count(), threads, [&](int64_t row) {
    double sum = 0;
    const int64_t length = std::min(lengths.data[row], columns);
    for (int64_t entry = row * columns; entry < row * columns + length; ++entry) {
      const float* own = logits.data + entry * width;
      check_token(tokens.data[entry], width);
      sum += double(own[tokens.data[entry]]) - log_total_of(own, width);
    }
    sums.data[row] = sum;
  });
}

static void best_paths(const Floats<3>& logits, const Integers<1>& before, const Types& starts,
                       const Types& tokens, const Floats<1>& log_probs, const Floats<1>& backoffs,
                       const Floats<1>& frequencies, float weight, int candidates,
                       const Tensor<int64_t, 2>& paths, int threads) {
  const Bigrams bigrams{starts.data,   tokens.data,      tokens.size(0), log_probs.data,
                        backoffs.data, frequencies.data};
  const int length = int(logits.size(1)), width = int(logits.size(2));
  check_same("rows", logits.size(0), before.size(0), paths.size(0));
  check_same("positions", length, paths.size(1));
  check_same("types", width, starts.size(0) - 1, backoffs.size(0), frequencies.size(0));
  check_same("bigrams", tokens.size(0), log_probs.size(0));
  check(0 < candidates && candidates <= width, "there are no such candidates");
  for_rows(logits.size(0), threads, [&](int64_t row) {
    check_token(before.data[row], width);
    best_path(logits.data + row * length * width, length, width, before.data[row], bigrams, weight,
              candidates, best_isa(), paths.data + row * length);
  });
}

// The input of a block drafter: scaled embeddings, and the embeddings of the positions. A `mask`
// token gets a mixture of the source's embeddings, by the query of its position.
static void embed_block(const Integers<2>& tokens, const Floats<2>& table, float scale,
                        const Integers<2>& positions, const Floats<2>& position_table,
                        int64_t offset, int64_t last, int64_t mask,
                        const std::optional<Floats<2>>& queries,
                        const std::optional<Rows<3>>& keys, const std::optional<Rows<3>>& values,
                        const std::optional<Floats<4>>& source_mask, const Tensor<float, 3>& out,
                        const Tensor<float, 3>& places) {
  const int64_t dim = table.size(1), width = tokens.size(1), rows = tokens.size(0);
  check_same("tokens", tokens.count(), positions.count(), out.size(0) * out.size(1),
             places.size(0) * places.size(1));
  check_same("width", dim, position_table.size(1), out.size(2), places.size(2));
  check(0 <= offset && 0 <= last && offset + last < position_table.size(0), "positions are missing");
  const Mask seen = mask_of(source_mask, rows, 1, keys ? int(keys->size(1)) : 0);
  if (queries) {
    check(keys && values, "there is nothing to copy");
    check_same("positions", position_table.size(0), queries->size(0));
    check_same("rows", rows, keys->size(0), values->size(0));
    check_same("source positions", seen.width, keys->size(1), values->size(1));
    check_same("width", dim, queries->size(1), keys->size(2), values->size(2));
  }
  std::vector<float> scores(seen.width + 16);
  for (int64_t i = 0; i < tokens.count(); ++i) {
    const int64_t row = i / width, token = tokens.data[i];
    const int64_t at = (std::clamp<int64_t>(positions.data[i], 0, last) + offset) * dim;
    float* own = out.data + i * dim;
    check_token(token, table.size(0));
    if (queries && token == mask) {
      const Attended source{keys->data + row * keys->row_stride,
                            values->data + row * values->row_stride, dim,
                            seen.data ? seen.data + row * seen.row_stride : nullptr, seen.width};
      best_isa().attend(queries->data + at, source, int(dim), 1.0f, scores.data(), own);
    } else {
      std::copy_n(table.data + token * dim, dim, own);
    }
    for (int64_t j = 0; j < dim; ++j) own[j] *= scale;
    std::copy_n(position_table.data + at, dim, places.data + i * dim);
  }
}

// The embedding tables of a decoder, and its layers.
struct Tables {
  Floats<2> tokens;
  float scale;
  Floats<2> positions;
  int64_t offset, last;
  std::shared_ptr<Stack> stack;
};

// New tokens of every row: positions, masks, and where they go in the storage of all rows.
struct Window {
  Owned<int64_t, 2> positions;
  Owned<int64_t, 1> at;
  Owned<float, 4> seen;
  Window(int64_t rows, int64_t width, const Integers<1>& cached, const Storage& storage, int live,
         const std::optional<Integers<2>>& last_seen = {})
      : positions(rows, width), at(rows * width), seen(rows, int64_t(1), width, int64_t(live)) {
    const int64_t capacity = storage.size(1) / rows;
    check_same("rows", rows, cached.size(0));
    check_within(cached, 0, capacity, "the length of a cached prefix");
    const int64_t most = *std::max_element(cached.data, cached.data + rows);
    if (most + width > live || live > capacity)
      throw std::out_of_range("a pass is longer than there is room for in the cache");
    open_window(cached, last_seen, 0, capacity, positions.written(), at.written(), seen.written());
  }
};

// A verifier's pass over committed and drafted tokens, up to the logits, in one call: the functions
// named here, one after the other.
class Scorer {
 public:
  Scorer(Tables tables, std::shared_ptr<PackedWeights> output)
      : own_(std::move(tables)), output_(std::move(output)) {}

  void score(const Integers<2>& prefix, const Integers<1>& lengths, const Integers<2>& draft,
             const Integers<1>& num_drafted, int64_t pad, const Integers<1>& cached,
             const Storage& storage, int live, const std::vector<Rows<5>>& source,
             const std::optional<Floats<4>>& source_mask, const Tensor<float, 3>& logits,
             int threads) const {
    const int64_t rows = lengths.count(), width = draft.size(1) + 1, dim = own_.tokens.size(1);
    check(rows > 0, "a pass needs rows");
    Owned<int64_t, 2> tokens(rows, width);
    scored_tokens(prefix, lengths, draft, num_drafted, pad, tokens.written());
    Window window(rows, width, cached, storage, live);
    Owned<float, 3> x(rows, width, dim), states(rows, width, dim);
    embed(tokens.read(), own_.tokens, own_.scale, window.positions.read(), own_.positions,
          own_.offset, own_.last, x.written());
    own_.stack->run(x.read(), states.written(), 0, own_.stack->size(), window.seen.read(), storage,
                    window.at.read(), source, source_mask, std::nullopt, std::nullopt, threads);
    output_->multiply(states.read(), logits, threads);
  }

 private:
  Tables own_;
  std::shared_ptr<PackedWeights> output_;
};

// A block drafter that chooses among listed types, from prefixes to drafts, likewise.
class BlockDrafter {
 public:
  BlockDrafter(Tables tables, int64_t mask, int64_t pad, std::optional<Floats<2>> queries,
               std::shared_ptr<Head> head)
      : own_(std::move(tables)),
        mask_(mask),
        pad_(pad),
        queries_(std::move(queries)),
        head_(std::move(head)) {}

  // Returns the longest of the draft lengths `counts`, cut at `budget` and after an eos.
  int64_t draft(const Integers<2>& prefix, const Integers<1>& lengths,
                const Integers<1>& num_masks, const Integers<1>& budget, int64_t eos,
                const Integers<1>& cached, const Storage& storage, int live,
                const std::vector<Rows<5>>& source, const std::optional<Floats<4>>& source_mask,
                const std::vector<Rows<3>>& copied,
                const std::vector<std::shared_ptr<PackedWeights>>& lists, int candidates,
                const Tensor<int64_t, 2>& drafted, const Tensor<int64_t, 1>& counts,
                const Tensor<float, 2>& confidences, int threads) const {
    const int64_t rows = lengths.count(), dim = own_.tokens.size(1), used = drafted.size(1);
    check(rows > 0 && used > 0, "a draft needs rows and columns");
    check_same("rows", rows, prefix.size(0), num_masks.size(0), budget.size(0), cached.size(0),
               counts.size(0));
    check_within(lengths, 1, prefix.size(1), "the length of a prefix");
    check_within(cached, 0, live, "the length of a cached prefix");
    Owned<int64_t, 1> before(rows);
    int64_t lacking = 0, masks = used;  // the most of any row
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t known = lengths.data[row] - 1;
      lacking = std::max(lacking, known - cached.data[row]);
      masks = std::max(masks, num_masks.data[row]);
      before.values[row] = prefix.data[row * prefix.size(1) + known];
    }
    const int64_t width = lacking + masks;
    Owned<int64_t, 2> tokens(rows, width), last_seen(rows, width), columns(rows, used);
    open_block(prefix, lengths, cached, num_masks, mask_, pad_, tokens.written(),
               last_seen.written(), columns.written());
    Window window(rows, width, cached, storage, live, last_seen.read());
    Owned<float, 3> x(rows, width, dim), places(rows, width, dim), states(rows, used, dim);
    std::optional<Rows<3>> keys, values;
    if (!copied.empty()) keys = copied.at(0), values = copied.at(1);
    embed_block(tokens.read(), own_.tokens, own_.scale, window.positions.read(), own_.positions,
                own_.offset, own_.last, mask_, queries_, keys, values, source_mask, x.written(),
                places.written());
    own_.stack->run(x.read(), states.written(), 0, own_.stack->size(), window.seen.read(), storage,
                    window.at.read(), source, source_mask, places.read(), columns.read(), threads);
    walk_blocks(states.read(), std::nullopt, lists, before.read(), own_.tokens, *head_,
                source, source_mask, candidates, drafted, confidences, threads);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t most = std::clamp<int64_t>(budget.data[row], 0, used);
      counts.data[row] = up_to_eos(drafted.data + row * used, most, eos);
    }
    return *std::max_element(counts.data, counts.data + rows);
  }

 private:
  Tables own_;
  int64_t mask_, pad_;
  std::optional<Floats<2>> queries_;
  std::shared_ptr<Head> head_;
};

}  // namespace specdec

PYBIND11_MODULE(_kernels, module) {
  namespace py = pybind11;
  using namespace specdec;
  module.doc() = "Kernels whose result for a row depends on that row alone.";
  module.attr("sources") = STRING(SOURCES);  // their hash: setup.py
  module.def("instruction_sets", [] {
    std::vector<std::string> found;
    for (const Isa* isa : usable()) found.emplace_back(isa->name);
    return found;
  });
  Torch::load();
  const auto arg = [](const char* name) { return py::arg(name); };
  module.def("best", &best);
  module.def("log_total", &log_total);
  module.def("largest", &largest, arg("logits"), arg("scores"), arg("tokens"), arg("threads"));
  module.def("rank", &rank);
  module.def("leading_best", &leading_best, arg("logits"), arg("drafted"), arg("lengths"),
             arg("num_kept"), arg("behind"), arg("threads"));
  module.def("failed", &failed, arg("logits"), arg("columns"), arg("active"), arg("out"));
  module.def("leading_log_prob", &leading_log_prob, arg("logits"), arg("tokens"), arg("lengths"),
             arg("sums"), arg("threads"));
  module.def("best_paths", &best_paths, arg("logits"), arg("before"), arg("starts"), arg("tokens"),
             arg("log_probs"), arg("backoffs"), arg("frequencies"), arg("weight"),
             arg("candidates"), arg("paths"), arg("threads"));
  module.def("walk_blocks", &walk_blocks, arg("states"), arg("logits"), arg("lists"),
             arg("before"), arg("embeddings"), arg("head"), arg("source"),
             arg("source_mask"), arg("candidates"), arg("drafted"), arg("confidences"),
             arg("threads"));
  module.def("embed", &embed, arg("tokens"), arg("table"), arg("scale"), arg("positions"),
             arg("position_table"), arg("offset"), arg("last"), arg("out"));
  module.def("embed_block", &embed_block, arg("tokens"), arg("table"), arg("scale"),
             arg("positions"), arg("position_table"), arg("offset"), arg("last"), arg("mask"),
             arg("queries"), arg("keys"), arg("values"), arg("source_mask"), arg("out"),
             arg("places"));
  module.def("list_types", &list_types, arg("source_ids"), arg("starts"), arg("types"),
             arg("common"), arg("out"));
  module.def("open_window", &open_window, arg("lengths"), arg("last_seen"), arg("skip"),
             arg("capacity"), arg("positions"), arg("at"), arg("mask"));
  module.def("open_block", &open_block, arg("prefix"), arg("lengths"), arg("cached"),
             arg("num_masks"), arg("mask"), arg("pad"), arg("tokens"), arg("last_seen"),
             arg("used"));
  module.def("extend", &extend, arg("draft"), arg("num_accepted"), arg("next_tokens"),
             arg("max_len"), arg("eos"), arg("prefix"), arg("prefix_lengths"), arg("active"),
             arg("tokens"), arg("lengths"), arg("accepted"), arg("ended"), arg("full"));
  module.def("scored_tokens", &scored_tokens, arg("prefix"), arg("lengths"), arg("draft"),
             arg("num_drafted"), arg("pad"), arg("out"));
  py::class_<PackedWeights, std::shared_ptr<PackedWeights>>(module, "PackedWeights")
      .def(py::init<const Floats<2>&, const std::optional<Floats<1>>&, bool, const std::string&>(),
           arg("weight"), arg("bias"), arg("int8"), arg("instruction_set"))
      .def_property_readonly("bits", &PackedWeights::bits)
      .def("multiply", &PackedWeights::multiply<kAny>, arg("x"), arg("out"), arg("threads"));
  py::class_<Choices>(module, "Choices")
      .def(py::init<Floats<2>, const PackedWeights&>(), arg("weight"), arg("like"))
      .def("pick", &Choices::pick, arg("outputs"));
  py::class_<Stack, std::shared_ptr<Stack>>(module, "Stack")
      .def(py::init<int, int, int>(), arg("dim"), arg("heads"), arg("ffn"))
      .def("add", &Stack::add, arg("products"), arg("norms"), arg("norm_before"),
           arg("activation"))
      .def("run", &Stack::run, arg("x"), arg("out"), arg("first"), arg("stop"), arg("mask"),
           arg("storage"), arg("at"), arg("source"), arg("source_mask"), arg("positions"),
           arg("columns"), arg("threads"));
  py::class_<Tables>(module, "Tables")
      .def(py::init<Floats<2>, float, Floats<2>, int64_t, int64_t, std::shared_ptr<Stack>>(),
           arg("tokens"), arg("scale"), arg("positions"), arg("offset"), arg("last"), arg("stack"));
  py::class_<Head, std::shared_ptr<Head>>(module, "Head")
      .def(py::init<Tensor<const Bfloat16, 2>, std::shared_ptr<PackedWeights>,
                    std::shared_ptr<PackedWeights>, std::shared_ptr<PackedWeights>, int>(),
           arg("table"), arg("state"), arg("out"), arg("context"), arg("heads"));
  py::class_<Scorer>(module, "Scorer")
      .def(py::init<Tables, std::shared_ptr<PackedWeights>>(), arg("tables"), arg("output"))
      .def("score", &Scorer::score, arg("prefix"), arg("lengths"), arg("draft"),
           arg("num_drafted"), arg("pad"), arg("cached"), arg("storage"), arg("live"),
           arg("source"), arg("source_mask"), arg("logits"), arg("threads"));
  py::class_<BlockDrafter>(module, "BlockDrafter")
      .def(py::init<Tables, int64_t, int64_t, std::optional<Floats<2>>,
                    std::shared_ptr<Head>>(),
           arg("tables"), arg("mask"), arg("pad"), arg("queries"), arg("head"))
      .def("draft", &BlockDrafter::draft, arg("prefix"), arg("lengths"), arg("num_masks"),
           arg("budget"), arg("eos"), arg("cached"), arg("storage"), arg("live"), arg("source"),
           arg("source_mask"), arg("copied"), arg("lists"), arg("candidates"),
           arg("drafted"), arg("counts"), arg("confidences"), arg("threads"));
}
